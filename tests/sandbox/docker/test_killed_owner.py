"""kill -9 of a run with many sandboxes: the next one removes them all. `make soak-sandbox` does it 20 times."""

import asyncio
import os
import signal
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agentrl_sandbox.docker import DockerBackend
from agentrl_sandbox.survey import collect, found
from tests.sandbox.engine import ALONE, entered

pytestmark = ALONE

COUNT = 64
ROUNDS = int(os.environ.get("AGENTRL_SOAK_SANDBOX", "2"))


@asynccontextmanager
async def owner(count, *, wait_for):
    """A process that holds `count` sandboxes, once it has opened `wait_for` of them; and its name as their owner."""
    script = Path(__file__).with_name("owner.py")
    process = await asyncio.create_subprocess_exec(
        sys.executable, script, str(count), stdout=asyncio.subprocess.PIPE, start_new_session=True
    )
    try:
        name = (await process.stdout.readline()).decode().strip()
        for _ in range(wait_for):
            assert await process.stdout.readline() == b"open\n"
        yield process, name
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        process._transport.close()


async def left_of(name):
    return [one for one in await found("docker") if one.owner == name]


@pytest.mark.timeout(900 * ROUNDS)
async def test_after_the_next_start_none_is_left(capsys):
    async with entered("docker") as backend:
        await backend.prepare("")
    left, seconds = [], []
    for _ in range(ROUNDS):
        async with owner(COUNT, wait_for=COUNT) as (process, name):
            assert len(await left_of(name)) == COUNT
            assert not any(one.gone for one in await left_of(name))
            process.kill()
            await process.wait()
        orphans = await left_of(name)
        assert len(orphans) == COUNT
        assert all(one.gone for one in orphans)
        begun = time.monotonic()
        async with DockerBackend():
            seconds.append(time.monotonic() - begun)
        left.append(len(await left_of(name)))
        with capsys.disabled():
            print(
                f"\nkill -9 of an owner of {COUNT} running containers, {len(left)} times: left after the next start "
                f"{sum(left)} ({max(seconds):.1f} s at most to remove them)"
            )
    assert sum(left) == 0


@pytest.mark.timeout(300)
async def test_killed_while_it_creates(docker):
    """What the engine was still creating then is found by a later sweep."""
    await docker.prepare("")
    async with owner(16, wait_for=4) as (process, name):
        process.kill()
        await process.wait()
    deadline = time.monotonic() + 30
    removed = await collect("docker")
    while await left_of(name):
        assert time.monotonic() < deadline
        removed += await collect("docker")
    assert removed >= 4
