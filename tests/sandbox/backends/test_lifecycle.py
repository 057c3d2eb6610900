"""From `sandbox` to `remove`: found while they are open, and gone without a trace."""

import asyncio
import time

import pytest

from agentrl.errors import ConfigError, SandboxError
from agentrl_sandbox.owners import current
from tests.sandbox.backends.inside import ISOLATED

pytestmark = pytest.mark.parametrize("backend", ISOLATED, indirect=True)


async def ids(backend):
    """Those of this process: an engine may have others."""
    return {found.sandbox_id for found in await backend.list() if found.owner == current()}


async def test_an_open_sandbox_is_found_with_its_owner_and_deadline(backend, box, spec):
    (found,) = [found for found in await backend.list() if found.sandbox_id == box.sandbox_id]
    assert box.sandbox_id.startswith(backend.name)
    assert (found.owner, found.gone) == (current(), False)
    assert abs(found.deadline - time.time() - spec.lifetime_s) < 60


async def test_a_closed_sandbox_is_not_found(backend, closed):
    async with closed:
        assert closed.sandbox_id in await ids(backend)
    assert closed.sandbox_id not in await ids(backend)


@pytest.mark.parametrize("spec", [{"lifetime_s": 0.01}], indirect=True)
async def test_one_whose_time_is_over_is_gone(backend, box):
    for _ in range(50):  # engines keep whole seconds
        here = [found for found in await backend.list() if found.sandbox_id == box.sandbox_id]
        if all(found.gone for found in here):  # another process may have removed it
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"not gone: {here}")


async def test_a_removed_sandbox_is_dead_and_says_so(backend, box):
    running = asyncio.create_task(box.exec("sleep 30"))
    await asyncio.sleep(0.1)
    await backend.remove([box.sandbox_id, f"{backend.name}-never-was"])
    assert box.sandbox_id not in await ids(backend)
    with pytest.raises(SandboxError, match=box.sandbox_id):
        await asyncio.wait_for(running, 10)
    for use in (box.ping, lambda: box.exec("true"), lambda: box.read_file("a"), lambda: box.start("true")):
        with pytest.raises(SandboxError, match=box.sandbox_id):
            await use()


@pytest.mark.thorough
async def test_cancellation_at_any_await_of_the_creation_leaves_nothing(backend, spec):
    made = []
    for steps in range(40):
        made.append(box := backend.sandbox(spec))
        task = asyncio.create_task(box.__aenter__())
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        if (await asyncio.gather(task, return_exceptions=True))[0] is box:
            await box.__aexit__(None, None, None)
            break
    for delay in range(8):
        made.append(box := backend.sandbox(spec))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(delay * 0.015), box:
                await asyncio.sleep(5)
    assert not {box.sandbox_id for box in made} & await ids(backend)


async def test_a_cancelled_owner_leaves_nothing(backend, closed):
    async def own():
        async with closed as box:
            await box.exec("sleep 30")

    task = asyncio.create_task(own())
    for _ in range(200):
        if closed.sandbox_id in await ids(backend):
            break
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert closed.sandbox_id not in await ids(backend)


async def test_an_unknown_image_is_said(backend, spec):
    spec = spec.model_copy(update={"image": "no-such-image"})
    with pytest.raises((SandboxError, ConfigError), match="no-such-image"):
        async with backend.sandbox(spec):
            pass
    with pytest.raises((SandboxError, ConfigError), match="no-such-image"):
        await backend.prepare("no-such-image")


async def test_an_unknown_user_is_said(box):
    with pytest.raises((ConfigError, SandboxError), match="nobody-knows"):
        await box.exec("true", user="nobody-knows")
