"""The reaper removes what is gone, leaves the rest, and never harms who called it."""

from __future__ import annotations

import asyncio

import pytest

from agentrl.errors import SandboxError
from agentrl_sandbox import reaper
from agentrl_sandbox.backend import FoundSandbox
from agentrl_sandbox.reaper import reaping, sweep


class Shelf:
    """A back end with some sandboxes on it."""

    name = "shelf"

    def __init__(self, **gone: bool) -> None:
        self.boxes = dict(gone)
        self.sweeps = asyncio.Semaphore(0)
        self.broken: Exception | None = None

    async def list(self):
        if self.broken:
            raise self.broken
        return [FoundSandbox(name, "", "owner", "run", 0.0, gone) for name, gone in self.boxes.items()]

    async def remove(self, sandbox_ids):
        for name in sandbox_ids:
            del self.boxes[name]
        self.sweeps.release()


@pytest.fixture
def often(monkeypatch):
    monkeypatch.setattr(reaper, "_EVERY_S", 0.005)


async def test_what_is_gone_is_removed_at_the_start(caplog):
    caplog.set_level("INFO", "agentrl")
    shelf = Shelf(a=True, b=False, c=True)
    async with reaping(shelf):
        assert shelf.boxes == {"b": False}
    assert "shelf: removed 2 sandboxes" in caplog.text


async def test_and_from_time_to_time(often):
    shelf = Shelf()
    async with asyncio.timeout(10), reaping(shelf):
        for _ in range(2):
            shelf.boxes["late"] = True
            await shelf.sweeps.acquire()
    shelf.boxes["after"] = True
    await asyncio.sleep(0.02)
    assert shelf.boxes == {"after": True}, "nothing runs on"


async def test_a_quiet_machine_is_not_talked_about(caplog):
    caplog.set_level("INFO", "agentrl")
    assert await sweep(Shelf(a=False)) == 0
    assert not caplog.text


@pytest.mark.parametrize("error", [SandboxError("no engine"), OSError(2, "x"), KeyError("Labels")])
async def test_errors_stay_inside_and_the_next_sweep_goes_on(error, often, caplog):
    shelf = Shelf(a=True)
    shelf.broken = error
    async with asyncio.timeout(10), reaping(shelf):
        assert shelf.boxes
        assert "could not be removed" in caplog.text
        shelf.broken = None
        await shelf.sweeps.acquire()
    assert not shelf.boxes


async def test_an_engine_that_hangs_does_not_hold_up_the_start(monkeypatch, caplog):
    monkeypatch.setattr(reaper, "_PATIENCE_S", 0.01)
    shelf = Shelf()
    shelf.list = asyncio.Event().wait
    async with asyncio.timeout(10), reaping(shelf):
        pass
    assert "could not be removed: TimeoutError" in caplog.text


async def test_a_cancelled_start_is_cancelled():
    shelf = Shelf()
    shelf.list = asyncio.Event().wait
    starting = asyncio.create_task(sweep(shelf))
    await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
