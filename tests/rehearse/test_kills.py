"""A rehearsal is ended in each of its stages, in up to five ways. Ten seconds later nothing of it is left.

    SLIME_SRC=... python -m pytest tests/rehearse/test_kills.py -k "rollout or ray"

A case takes as long as the rehearsal needs to its stage. The leftovers are found without the product's help.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.rehearse.calling import COMMAND
from tests.rehearse.launch import write_launch
from tests.rehearse.leftovers import MARKER, Watch

SOURCE = os.environ.get("SLIME_SRC", "")
pytestmark = [
    pytest.mark.thorough,
    pytest.mark.timeout(900),
    pytest.mark.skipif(sys.platform != "linux", reason="leftovers are read from /proc"),
    pytest.mark.skipif(not SOURCE, reason="SLIME_SRC is not set: give the root of slime's source"),
]
STAGES = (
    *("arguments", "ray", "placement", "router", "engines", "actors", "weights", "rollout", "conversion", "training"),
    *("checkpoint", "evaluation"),
)
_LIMIT_S = 600
"""Seconds to reach a stage on a busy machine."""
_LEFT_S = 10
"""Seconds after the end in which all must be gone."""
_ENDS_S = 60
"""Seconds in which a command whose Ray or actor was killed must have noticed and ended."""
End = Callable[[subprocess.Popen[bytes], Watch], None]


def interrupted(command: subprocess.Popen[bytes], watch: Watch) -> None:
    command.send_signal(signal.SIGINT)


def killed(command: subprocess.Popen[bytes], watch: Watch) -> None:
    command.kill()


def raylet_killed(command: subprocess.Popen[bytes], watch: Watch) -> None:
    _kill(watch, "/raylet/raylet ")


def actor_killed(command: subprocess.Popen[bytes], watch: Watch) -> None:
    _kill(watch, "ray::")


def guard_killed(command: subprocess.Popen[bytes], watch: Watch) -> None:
    _kill(watch, "rehearse/guard.py")


def _kill(watch: Watch, part: str) -> None:
    """Kill the last started process whose command line has the part."""
    numbers = watch.named(part)
    if not numbers:
        pytest.skip(f"no process {part.strip()} lives in this stage")
    os.kill(numbers[-1], signal.SIGKILL)


CASES = [
    pytest.param(stage, end, id=f"{stage}-{end.__name__}")
    for stage in STAGES
    for end in (interrupted, killed, raylet_killed, actor_killed, guard_killed)
    if not (end is raylet_killed and stage == "arguments")
    and not (end is actor_killed and stage in ("arguments", "ray", "placement"))
    and not (end is guard_killed and stage not in ("engines", "rollout", "checkpoint"))
]


@pytest.mark.parametrize(("stage", "end"), CASES)
def test_nothing_is_left(stage: str, end: End, tmp_path: Path):
    gpus = 2 if end in (killed, actor_killed) else 1  # one trainer and one engine start sooner
    with rehearsal(tmp_path, gpus) as (command, watch):
        wait_for(stage, tmp_path / "out", command)
        end(command, watch)
        began = time.monotonic()
        try:
            code = command.wait(_ENDS_S)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the command did not notice: {(tmp_path / 'output').read_text()[-500:]}")
        ended = time.monotonic()
        left = left_after(watch, _LEFT_S)
        print(f"ended after {ended - began:.1f} s; {len(left)} left {time.monotonic() - ended:.1f} s later")
    assert code != 0
    assert left == []


@contextmanager
def rehearsal(folder: Path, gpus: int) -> Iterator[tuple[subprocess.Popen[bytes], Watch]]:
    """A rehearsal of the good launch, under watch. At the end, all that is left of it is killed."""
    launch = write_launch(folder / "launch", slime=Path(SOURCE), megatron=_megatron(folder))
    words = [*COMMAND, str(launch.script), "--out", str(folder / "out")]
    with (folder / "output").open("wb") as output:
        command = subprocess.Popen(
            words,
            cwd=launch.folder,
            env=launch.environment | {MARKER: str(folder), "GPUS": str(gpus)},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's `pytest &` lets it be ignored
        )
    with Watch(command.pid, str(folder)) as watch:
        try:
            yield command, watch
        finally:
            command.kill()
            command.wait()
            for number in watch.named(""):
                with suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)


def _megatron(folder: Path) -> Path:
    path = Path(os.environ.get("MEGATRON_SRC") or folder / "no-megatron")
    path.mkdir(exist_ok=True)
    return path


def wait_for(stage: str, out: Path, command: subprocess.Popen[bytes]) -> None:
    """Wait until a process of the rehearsal has begun the stage."""
    deadline = time.monotonic() + _LIMIT_S
    while time.monotonic() < deadline:
        if stage in begun(out):
            return
        if command.poll() is not None:
            pytest.fail(f"the rehearsal ended before {stage}: {(out.parent / 'output').read_text()[-500:]}")
        time.sleep(0.05)
    pytest.fail(f"the rehearsal did not reach {stage}: {sorted(begun(out))}")


def begun(out: Path) -> set[str]:
    """The stages that have begun, from the events in the rehearsal's folder."""
    stages = set()
    for file in out.glob("**/events/*.jsonl"):
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.endswith("}") and (event := json.loads(line))["event"] == "begin":
                stages.add(event["stage"])
    return stages


def left_after(watch: Watch, seconds: float) -> list[str]:
    """What is left after so many seconds, or nothing as soon as nothing is."""
    deadline = time.monotonic() + seconds
    while (left := watch.left()) and time.monotonic() < deadline:
        time.sleep(0.2)
    return left
