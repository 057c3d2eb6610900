"""kill -9 of a run with many sandboxes: the next one removes them all. `make soak-sandbox` does it 20 times to 64."""

import asyncio
import json
import os
import signal
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agentrl_sandbox.docker import DockerBackend
from agentrl_sandbox.docker.container import OWNER
from agentrl_sandbox.survey import collect, found
from tests.sandbox.engine import ALONE, SOAK, entered

pytestmark = ALONE

COUNT = 64 if SOAK else 16
WITH_SERVICES = 32 if SOAK else 3
ROUNDS = SOAK or 1


@asynccontextmanager
async def owner(count, *options, wait_for):
    """A process that holds `count` sandboxes, once it has opened `wait_for` of them; and its name as their owner."""
    script = Path(__file__).with_name("owner.py")
    process = await asyncio.create_subprocess_exec(
        sys.executable, script, str(count), *options, stdout=asyncio.subprocess.PIPE, start_new_session=True
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


@pytest.mark.timeout(600)
@pytest.mark.parametrize("wait_for", [1, WITH_SERVICES])
async def test_services_networks_and_volumes_of_a_killed_owner(docker, base, wait_for):
    await docker.prepare("")
    async with owner(WITH_SERVICES, "services", wait_for=wait_for) as (process, name):
        process.kill()
        await process.wait()
    query, labels = docker.engine.docker._query_json, json.dumps({"label": [f"{OWNER}={name}"]})

    async def things():
        containers = await query("containers/json", params={"all": "1", "filters": labels})
        networks = await query("networks", params={"filters": labels})
        volumes = await query("volumes", params={"filters": labels})
        return len(containers), len(networks), len(volumes["Volumes"] or ())

    found = await things()
    assert found[0] >= 3 * wait_for
    assert min(found[1:]) >= wait_for
    deadline = time.monotonic() + 60
    while any(await things()):
        assert time.monotonic() < deadline
        await collect("docker")


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
