"""Rehearse each launch with a planted mistake, and print whether the rehearsal names the mistake.

    SLIME_SRC=... python -m tests.rehearse.run_mistakes [NAMES] [--also FILE] [--clean] [--out FOLDER]

`--clean` rehearses slime's own scripts and the good launch instead, which must pass without a problem. `--also` takes
more mistakes from a Python file. MEGATRON_SRC names a folder with Megatron-LM; without it a rehearsal takes its own.
Exit code 0: all as it should be.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.rehearse.calling import rehearse
from tests.rehearse.launch import Launch, write_launch
from tests.rehearse.mistakes import MISTAKES, STAGES, Mistake
from tests.rehearse.slime_scripts import SCRIPTS, write_script

GOOD, GOOD_ELSEWHERE = "the good launch", "the good launch in a folder with an apostrophe and a space"
_LIMIT_S = 900
_ALLOWED_S = 180
"""Seconds in which a mistake must be named, on a quiet machine."""


@dataclass(frozen=True, slots=True)
class Outcome:
    name: str
    good: bool
    seconds: float
    text: str
    """Stage and cause as reported, or the reason for `good` being false."""


def run(launch: Launch, out: Path, options: Sequence[str] = (), prefix: Sequence[str] = ()) -> tuple[int, Any]:
    """Rehearse a launch. Returns the exit code and the report, or the end of the output without a report."""
    arguments = [str(launch.script), *options]
    done = rehearse(arguments, out, prefix, env=launch.environment, cwd=launch.folder, timeout=_LIMIT_S)
    return done.code, done.report if done.report is not None else done.output


def problems(report: Any) -> list[tuple[str, str]]:
    """The problems of a report: stage and cause. A problem that names no stage has an empty one."""
    named = []
    for entry in report.get("problems", []) if isinstance(report, dict) else []:
        if isinstance(entry, dict):
            named.append((str(entry.get("stage") or ""), str(entry.get("cause"))))
        else:
            first = next((stage for stage in STAGES if entry.startswith(stage)), "")
            named.append((first, entry))
    return named


def is_named(mistake: Mistake, named: Sequence[tuple[str, str]]) -> bool:
    """Whether a line has the cause, and no other stage than the mistake's."""
    return any(
        stage in (*mistake.stages, "") and re.search(mistake.cause, cause, re.IGNORECASE) for stage, cause in named
    )


def _text(named: Sequence[tuple[str, str]]) -> str:
    return "; ".join(f"[{stage or 'no stage'}] {cause}" for stage, cause in named)


def judge(mistake: Mistake, folder: Path, prefix: Sequence[str], gpus: int = 8) -> Outcome:
    launch = write_launch(folder / "launch", slime=slime(), megatron=megatron(folder), shape=mistake.shape)
    launch.environment["GPUS"] = str(gpus)
    for edit in mistake.edits:
        edit.apply(launch.folder)
    with mistake.around(launch):
        began = time.monotonic()
        options = ("--rollouts", "1", "--no-resume", *mistake.options)
        code, report = run(launch, folder / "out", options, prefix)
        seconds = time.monotonic() - began
    if isinstance(report, dict):
        seconds = report["figures"]["seconds"]  # without the time for which a prefix such as flock waits
    named = problems(report)
    text = _text(named) or f"exit code {code}: {report!s:.300}"
    good = code == 1 and is_named(mistake, named) and (prefix or seconds < _ALLOWED_S)
    return Outcome(mistake.name, bool(good), seconds, text)


def clean(folder: Path, prefix: Sequence[str], names: Sequence[str]) -> Iterator[Outcome]:
    """The good launch, and slime's own scripts. An outcome is good if nothing is reported."""
    places = {GOOD: "good", GOOD_ELSEWHERE: "a friend's folder"}
    launches = {
        name: write_launch(folder / place, slime=slime(), megatron=megatron(folder)) for name, place in places.items()
    }
    for script in SCRIPTS:
        place = folder / Path(script.name).stem
        path = write_script(script, place, slime=slime(), megatron=megatron(folder))
        launches[script.name] = OtherLaunch(slime(), dict(os.environ), path)
    for name, launch in launches.items():
        if names and name not in names:
            continue
        began = time.monotonic()
        code, report = run(launch, folder / f"out-{Path(name).stem}", ("--no-resume",), prefix)
        text = _text(problems(report)) or f"exit code {code}"
        text += "" if isinstance(report, dict) else f" {report}"
        yield Outcome(name, code == 0 and not problems(report), time.monotonic() - began, text)


@dataclass
class OtherLaunch(Launch):
    """A script that is not in its working folder."""

    path: Path = Path()

    @property
    def script(self) -> Path:
        return self.path


def slime() -> Path:
    return Path(os.environ["SLIME_SRC"]).resolve()


def megatron(folder: Path) -> Path:
    """The folder of Megatron-LM. An empty one lets the rehearsal take its own."""
    path = Path(os.environ.get("MEGATRON_SRC") or folder / "no-megatron")
    path.mkdir(parents=True, exist_ok=True)
    return path


def more_mistakes(file: Path) -> Sequence[Mistake]:
    spec = importlib.util.spec_from_file_location("more_mistakes", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return list(module.MISTAKES)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="names of mistakes or scripts; none: all")
    parser.add_argument("--also", type=Path, help="a Python file with more MISTAKES; only those are rehearsed")
    parser.add_argument("--clean", action="store_true", help="rehearse launches without a mistake")
    parser.add_argument("--out", type=Path, help="folder for launches and reports (a temporary one)")
    parser.add_argument("--gpus", type=int, default=8, help="GPUs of the launch; with one a rehearsal is shorter (8)")
    parser.add_argument("--prefix", default="", help="words before the command, such as `nice -n 15`")
    options = parser.parse_args()
    mistakes = more_mistakes(options.also) if options.also else MISTAKES
    names = {mistake.name for mistake in mistakes} | {script.name for script in SCRIPTS} | {GOOD, GOOD_ELSEWHERE}
    if unknown := set(options.names) - names:
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory() as temporary:
        root = (options.out or Path(temporary)).resolve()
        prefix = shlex.split(options.prefix)
        chosen = [mistake for mistake in mistakes if not options.names or mistake.name in options.names]
        outcomes = (
            clean(root, prefix, options.names)
            if options.clean
            else (judge(mistake, root / re.sub(r"\W+", "-", mistake.name), prefix, options.gpus) for mistake in chosen)
        )
        bad = 0
        for outcome in outcomes:
            bad += not outcome.good
            print(
                f"{'good' if outcome.good else 'BAD '} {outcome.seconds:5.0f} s  {outcome.name}: {outcome.text}",
                flush=True,
            )
    print(f"{bad} are not as they should be")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
