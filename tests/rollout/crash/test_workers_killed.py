"""kill -9 of workers and of their driver, in turn: every prompt of the epoch is trained once, and no process is left.

`make soak-workers` kills 20 of each. With Ray: .ci/miles.sh FOLDER tests/rollout/crash.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import time
from contextlib import suppress
from itertools import count
from random import Random

import pytest

from tests.rollout.crash.oracle import faults
from tests.rollout.crash.program import newest
from tests.rollout.crash.updates import rewind, updates
from tests.rollout.crash.workers import LoopRunSettings, main
from tests.workers.pools import ENVIRONMENT, lives

SOAK = "AGENTRL_SOAK" in os.environ
BATCH, GROUP_SIZE = 4, 2
FEW = 2
"""Kills of a worker, and of the driver, where this is not a soak."""
PATIENCE_S = 180
"""For one start of a driver and its workers, on a machine that has other work."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200 if SOAK else 900)]


def start(settings, *given):
    """A process of the run. It is forked from this one, because a new one would load a tokenizer for longer than it
    lives. A driver of Ray is new: its library does not work in a fork of a process that has used it."""
    if settings.ray:
        file = settings.folder / "settings"
        file.write_bytes(pickle.dumps(settings))
        command = [sys.executable, "-m", "tests.rollout.crash.workers", str(file), str(given[-1])]
        return os.posix_spawn(sys.executable, command, ENVIRONMENT)
    child = os.fork()
    if not child:
        os._exit(main(settings, *given))
    return child


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
    return [pid for pid, its in noted if its == driver and lives(pid)]


def error(settings):
    file = settings.folder / "error"
    return file.read_text() if file.exists() else ""


def ended(child):
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def succeeds(settings, child):
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, error(settings)


def run_with_kills(settings, kills, rng, *given):
    """Kill a worker and the driver in turn, spread over the course of the run. Return its last weights."""
    seeds, steps = count(), settings.prompts // BATCH
    child = start(settings, *given, next(seeds))

    def ready():
        if number % 2:  # the driver is killed when an episode that a worker lost has been trained
            return (settings.folder / "lost").exists()
        return len(workers(settings, child)) == 2

    try:
        for number in range(2 * kills):
            after = int(0.8 * (number + rng.random()) / (2 * kills) * steps)
            while True:
                until(lambda: ended(child) or (updates(settings) >= after and ready()))  # noqa: B023
                time.sleep(rng.uniform(0, 0.15))
                if not ended(child):
                    break
                succeeds(settings, child)
                rewind(settings, 2)  # the run goes back, and the kill is to hit the next process
                child = start(settings, *given, next(seeds))
            if number % 2:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                child = start(settings, *given, next(seeds))
                continue
            worker = rng.choice(workers(settings, child))
            os.kill(worker, signal.SIGSTOP)  # none of its episodes ends before it does
            time.sleep(rng.uniform(0, 0.15))
            os.kill(worker, signal.SIGKILL)
        succeeds(settings, child)
    finally:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    return newest(settings.folder)["weights"]


def every_prompt_is_trained_once(folder, kills, rng, *given, capsys, **options):
    steps = 20 + 10 * kills
    settings = LoopRunSettings(
        folder=folder, prompts=BATCH * steps, batch=BATCH, group_size=GROUP_SIZE, in_flight=16, **options
    )
    weights = run_with_kills(settings, kills, rng, *given)
    assert faults(weights, settings.prompts, GROUP_SIZE) == []
    assert len(weights["updates"]) == steps
    lost = (folder / "lost").read_text().splitlines() if (folder / "lost").exists() else []
    assert lost, "no worker was killed while it played"
    until(lambda: not any(map(lives, workers(settings))))
    with capsys.disabled():
        print(
            f"\n{settings.prompts} prompts in groups of {GROUP_SIZE}, {kills} kills of a worker and {kills} of the "
            f"driver; {len(workers(settings))} workers, {len(lost)} episodes played again because theirs had ended"
        )


@pytest.mark.thorough
def test_every_prompt_is_trained_once(tmp_path, renderer, tokenizer, capsys):
    kills = 20 if SOAK else FEW
    every_prompt_is_trained_once(tmp_path, kills, Random(1), renderer, tokenizer, capsys=capsys)


@pytest.mark.thorough
@pytest.mark.ray
def test_every_prompt_is_trained_once_on_ray(tmp_path, capsys, ray_address):
    """Actors end with a driver that is killed, and the next one begins with others."""
    every_prompt_is_trained_once(tmp_path, 20 if SOAK else 1, Random(2), capsys=capsys, ray=ray_address)
