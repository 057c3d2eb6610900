# ruff: noqa: ASYNC220, ASYNC221 - processes and polls are how the test learns what happens
"""kill -9 of workers, drivers and raylets, again and again: each request is answered once, and no process is left.

`make soak-workers` kills 20 times. With Ray: .ci/miles.sh FOLDER tests/workers.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.workers.pools import ENVIRONMENT, JOB, ask, cluster, lives, pids, until, workers  # noqa: F401

KILLS, RAYLETS = (20, 20) if "AGENTRL_SOAK" in os.environ else (2, 1)
IN_FLIGHT = 200
pytestmark = pytest.mark.timeout(300 * (KILLS + 2))


def answers_once(answers):
    """Each request has one answer, and says why it was sent again."""
    assert [answer.result[0] for answer in answers] == [f"go{i % 4}" for i in range(IN_FLIGHT)]
    assert max(len(answer.lost) for answer in answers) <= 1


@pytest.mark.thorough
async def test_workers_killed_with_200_in_flight(workers, tmp_path):  # noqa: F811
    chance, again = random.Random(3), Counter()
    async with workers() as pool:
        for _ in range(KILLS):
            for file in tmp_path.glob("go*"):
                file.unlink()
            asked = [ask(pool, "until", f"go{i % 4}") for i in range(IN_FLIGHT)]
            await until(lambda: sum(seat.pending for seat in pool.seats) == IN_FLIGHT)
            (tmp_path / "go0").touch()
            await asyncio.sleep(chance.random() * 0.3)
            seat = chance.choice([seat for seat in pool.seats if seat.ready])
            os.kill(seat.pid, signal.SIGKILL)
            await asyncio.sleep(chance.random() * 0.3)
            for i in range(1, 4):
                (tmp_path / f"go{i}").touch()
            answers = await asyncio.gather(*asked)
            answers_once(answers)
            again.update(len(answer.lost) for answer in answers)
            await until(lambda: all(seat.ready for seat in pool.seats))
    assert again[1] > 0
    await until(lambda: not any(map(lives, pids(tmp_path))))


DRIVER = """
import asyncio, pickle, sys
from agentrl.workers import JobOrder, WorkerPool
from agentrl.workers.pipes import PipeTransport

async def main():
    order = JobOrder(sys.argv[1], sys.argv[2])
    async with WorkerPool(transport=PipeTransport(), order=order, size=2) as pool:
        await asyncio.gather(*(pool.play(pickle.dumps(("until", "never"))) for _ in range(200)))

asyncio.run(main())
"""


@pytest.mark.thorough
async def test_killed_drivers(tmp_path):
    """Their workers close what they have open, and end."""
    chance, seen = random.Random(4), 0
    for _ in range(KILLS):
        command = [sys.executable, "-c", DRIVER, JOB, str(tmp_path)]
        driver = subprocess.Popen(command, stderr=subprocess.DEVNULL, env=ENVIRONMENT)
        await until(lambda: len(pids(tmp_path)) == seen + 2)  # noqa: B023
        await asyncio.sleep(chance.random() * 0.5)
        driver.kill()
        driver.wait()
        await until(lambda: not any(map(lives, pids(tmp_path))))
        seen += 2
    assert sorted(pids(tmp_path, "closed")) == sorted(pids(tmp_path))


@pytest.mark.ray
async def test_killed_raylets(tmp_path):
    """The workers of the other nodes go on; those of the lost node are started again where there is room."""
    command = [sys.executable, str(Path(__file__).with_name("raylets.py")), JOB, str(tmp_path), str(RAYLETS)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=240 * (RAYLETS + 1), check=False, env=ENVIRONMENT
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == f"{RAYLETS} kills, each of {IN_FLIGHT} requests answered once"
    await until(lambda: not any(map(lives, pids(tmp_path))))
