"""Pools of workers under test."""

import asyncio
import os
import pickle
import time
from pathlib import Path

import pytest

from agentrl.workers import JobOrder, WorkerPool
from agentrl.workers.pipes import PipeTransport

ROOT = Path(__file__).parents[2]


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
"""For programs that the tests start."""


JOB = f"{Path(__file__).with_name('noisy_job.py')}:open_job"


@pytest.fixture(scope="module")
def cluster(ray_address):
    """This process is a driver of the Ray cluster."""
    import ray

    ray.init(address=ray_address, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


@pytest.fixture(params=["pipes", pytest.param("ray", marks=pytest.mark.ray)])
def workers(request, tmp_path):
    """`workers()` is a pool of two."""
    if request.param == "ray":
        request.getfixturevalue("cluster")
        from agentrl.workers.actors import ActorTransport as Transport
    else:
        Transport = PipeTransport
    return lambda size=2: WorkerPool(transport=Transport(), order=JobOrder(JOB, str(tmp_path)), size=size)


def ask(pool, verb, said="x", **given):
    return asyncio.ensure_future(pool.play(pickle.dumps((verb, said)), **given))


async def until(condition, seconds=100.0):
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it did not happen"
        await asyncio.sleep(0.01)
    return found


def pids(folder, name="opened"):
    file = folder / name
    return [int(line) for line in file.read_text().split()] if file.exists() else []


def lives(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
