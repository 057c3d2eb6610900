"""kill -9 of workers and of their driver, in turn: every prompt of the epoch is trained once, and no process is left.

`make soak-workers` kills 20 of each. With Ray: .ci/miles.sh FOLDER tests/rollout/crash/test_workers_killed.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import traceback
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from random import Random

import pytest

from tests.rollout.crash.oracle import faults
from tests.rollout.crash.program import newest
from tests.rollout.crash.test_crash import updates
from tests.rollout.crash.workers import LoopRunSettings, main
from tests.workers.test_pool import ENVIRONMENT, lives

KILLS = 20 if "AGENTRL_SOAK" in os.environ else 2
"""Of workers, and as many of the driver."""
BATCH, GROUP_SIZE, STEPS = 4, 2, 20 + 10 * KILLS
PATIENCE_S = 90

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * PATIENCE_S + 60 * KILLS)]


@pytest.fixture
def cluster():
    """The address of a Ray cluster, which this process does not join: it forks."""
    if find_spec("ray") is None:
        pytest.skip("could not import 'ray'")
    command = [sys.executable, str(Path(__file__).with_name("ray_head.py"))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT) as head:
        yield head.stdout.readline().strip()


def start(settings, *given):
    """A process of the run, forked from this one."""
    child = os.fork()
    if child:
        return child
    try:
        main(settings, *given)
    except BaseException:  # noqa: BLE001 - the boundary of the child
        (settings.folder / "error").write_text(traceback.format_exc())
        os._exit(1)
    os._exit(0)


def until(condition):
    end = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)
    return found


def workers(settings, driver=None):
    """All processes that were workers, or those of a driver that live."""
    file = settings.folder / "workers"
    noted = [[*map(int, line.split())] for line in file.read_text().splitlines()] if file.exists() else []
    if driver is None:
        return [pid for pid, _ in noted]
    return [pid for pid, parent in noted if (settings.ray or parent == driver) and lives(pid)]


def error(settings):
    file = settings.folder / "error"
    return file.read_text() if file.exists() else ""


def ended(child):
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def run_with_kills(settings, rng, *given):
    """Kill a worker and the driver in turn, spread over the course of the run. Return its last weights."""
    seeds = count()
    child = start(settings, *given, next(seeds))
    for number in range(2 * KILLS):
        after = int(0.8 * (number + rng.random()) / (2 * KILLS) * STEPS)
        least = 2 - number % 2  # a worker is killed while there is another one
        until(lambda: ended(child) or (updates(settings) >= after and len(workers(settings, child)) >= least))  # noqa: B023
        assert not ended(child), error(settings) or "the run ended before it was killed"
        time.sleep(rng.uniform(0, 0.15))
        if number % 2 == 0:
            os.kill(rng.choice(workers(settings, child)), signal.SIGKILL)
            continue
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        child = start(settings, *given, next(seeds))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, error(settings)
    return newest(settings.folder)["weights"]


def is_right(settings, weights, capsys):
    assert faults(weights, settings.prompts, GROUP_SIZE) == []
    assert len(weights["updates"]) == STEPS
    lost = (settings.folder / "lost").read_text().splitlines()
    assert lost, "no worker was killed while it played"
    until(lambda: not any(map(lives, workers(settings))))
    with capsys.disabled():
        print(
            f"\n{settings.prompts} prompts in groups of {GROUP_SIZE}, {KILLS} kills of a worker and {KILLS} of the "
            f"driver; {len(workers(settings))} workers, {len(lost)} episodes played again because theirs had ended"
        )


def settings_of(folder, **given):
    return LoopRunSettings(
        folder=folder, prompts=BATCH * STEPS, batch=BATCH, group_size=GROUP_SIZE, in_flight=16, **given
    )


@pytest.mark.parametrize("ahead", [True, False])
def test_every_prompt_is_trained_once(tmp_path, renderer, tokenizer, capsys, ahead):
    """Fully-async, and over-sampled with aborts."""
    settings = settings_of(tmp_path, ahead=ahead)
    is_right(settings, run_with_kills(settings, Random(ahead), renderer, tokenizer), capsys)


def test_every_prompt_is_trained_once_on_ray(tmp_path, renderer, tokenizer, capsys, cluster):
    """Actors end with a driver that is killed, and the next one begins with others."""
    settings = settings_of(tmp_path, ray=cluster)
    is_right(settings, run_with_kills(settings, Random(2), renderer, tokenizer), capsys)
