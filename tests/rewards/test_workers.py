"""Graders in processes: killed at the deadline, replaced, gone with their owner, for any event loop."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from agentrl.errors import InfraError
from agentrl.rewards.workers import GraderError, ProcessPool

HERE = f"{Path(__file__).parent / 'slow_graders.py'}:"


@pytest.fixture
def workers():
    workers = ProcessPool(2)
    yield workers
    pids = workers.processes()
    workers.close()
    assert not any(map(alive, pids))


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def until(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


async def test_a_process_serves_many_calls(workers):
    first = await workers.run(HERE + "pid", seconds=10)
    assert await workers.run(HERE + "add", 2, 3, seconds=10) == 5
    assert first in workers.processes()
    assert len(workers.processes()) <= 2


@pytest.mark.parametrize("grader", ["never", "huge"])
async def test_one_that_never_returns_is_killed_at_its_deadline_and_replaced(workers, grader):
    before = await workers.run(HERE + "pid", seconds=10)
    lag, watching = 0.0, True

    async def watch():
        nonlocal lag
        while watching:
            asked = time.monotonic()
            await asyncio.sleep(0.01)
            lag = max(lag, time.monotonic() - asked - 0.01)

    watcher = asyncio.create_task(watch())
    with pytest.raises(TimeoutError, match=rf"{grader} took longer than 0.5 s to grade; its process was killed"):
        await workers.run(HERE + grader, seconds=0.5)
    watching = False
    await watcher
    assert lag < 0.4  # the event loop went on
    assert not alive(before)
    assert await workers.run(HERE + "add", 1, 1, seconds=10) == 2


async def test_one_that_dies_is_the_worlds_failure_and_replaced(workers):
    with pytest.raises(InfraError, match=r"die: its process ended by signal SIGKILL"):
        await workers.run(HERE + "die", seconds=10)
    assert await workers.run(HERE + "add", 1, 1, seconds=10) == 2


async def test_an_exception_is_told_apart(workers):
    with pytest.raises(GraderError, match="wrong: KeyError: 'no such key'"):
        await workers.run(HERE + "wrong", seconds=10)
    with pytest.raises(InfraError, match="broken: ConnectionError: nobody answers"):
        await workers.run(HERE + "broken", seconds=10)
    with pytest.raises(GraderError, match=r"missing: FileNotFoundError: .*labels"):
        await workers.run(HERE + "missing", seconds=10)
    with pytest.raises(GraderError, match="no such file"):
        await workers.run("nowhere.py:grade", seconds=10)


async def test_a_cancelled_call_frees_its_process_at_once(workers):
    await workers.run(HERE + "pid", seconds=10)
    task = asyncio.create_task(workers.run(HERE + "never", seconds=600))
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert until(lambda: not any(alive(pid) for pid in workers.processes()) or len(workers.processes()) < 2)
    sums = [workers.run(HERE + "add", i, 1, seconds=10) for i in range(8)]
    assert await asyncio.gather(*sums) == [i + 1 for i in range(8)]


@pytest.mark.thorough
async def test_the_children_of_a_grader_die_with_it(workers, tmp_path):
    file = tmp_path / "pid"
    with pytest.raises(TimeoutError):
        await workers.run(HERE + "child", str(file), seconds=1.5)
    pid = int(file.read_text())
    assert until(lambda: not alive(pid))  # a busy machine takes a moment to bury it


def test_several_event_loops_share_it(workers):
    found = {}

    def play(name):
        found[name] = asyncio.run(workers.run(HERE + "add", name, 1, seconds=10))

    threads = [threading.Thread(target=play, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == {i: i + 1 for i in range(4)}
    assert len(workers.processes()) <= 2


@pytest.mark.thorough
@pytest.mark.parametrize("end", ["exit", "kill"])
def test_no_process_outlives_its_program(tmp_path, end):
    """A program that ends, or is killed with -9 while a grader of its loops."""
    code = f"""
import asyncio, json, os, sys, threading
from agentrl.rewards.workers import shared
async def main():
    workers = shared()
    pid = await workers.run({HERE + "pid"!r}, seconds=10)
    if {end!r} == "kill":
        loop = asyncio.create_task(workers.run({HERE + "never"!r}, seconds=1.0))
        await asyncio.sleep(0.2)
        print(json.dumps(workers.processes()), flush=True)
        os.kill(os.getpid(), 9)
    print(json.dumps(workers.processes()), flush=True)
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    pids = json.loads(done.stdout)
    assert pids
    assert until(lambda: not any(map(alive, pids)))
