"""What an event loop's users share: objects by loop, and resources that one task opens for all."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from contextlib import asynccontextmanager
from contextvars import ContextVar

import pytest

from agentrl._util.per_loop import PerLoop
from agentrl._util.resources import Resources, SharedResource
from agentrl.errors import InfraError


class Thing:
    """An object that holds its loop, as aiohttp's sessions do."""

    def __init__(self):
        self.loop = asyncio.get_running_loop()


def test_each_loop_has_one_object_and_a_new_loop_drops_those_of_closed_loops():
    things = PerLoop()

    async def twice():
        first = things.here(Thing)
        await asyncio.sleep(0)
        assert things.here(Thing) is first
        return weakref.ref(first)

    first = asyncio.run(twice())
    assert len(things) == 1, "nobody says that a loop is closed"
    second = asyncio.run(twice())
    gc.collect()
    assert first() is None
    assert list(things.values()) == [second()]


def test_an_object_of_an_open_loop_is_kept_while_other_loops_come_and_go():
    things, kept = PerLoop(), asyncio.new_event_loop()

    async def here():
        return things.here(Thing)

    thing = kept.run_until_complete(here())
    for _ in range(3):
        assert asyncio.run(here()) is not thing
    assert kept.run_until_complete(here()) is thing
    kept.close()
    assert (kept, thing) in things.pop_closed()
    assert things.pop_closed() == []


def test_an_object_that_cannot_be_made_is_made_by_the_next_user():
    things = PerLoop()

    async def play():
        with pytest.raises(ZeroDivisionError):
            things.here(lambda: 1 // 0)
        return things.here(lambda: 1)

    assert asyncio.run(play()) == 1


def test_loops_of_many_threads_get_their_own_object():
    things, start, found = PerLoop(), threading.Barrier(8), []

    async def here():
        return things.here(Thing).loop is asyncio.get_running_loop()

    def play():
        start.wait()
        found.extend(asyncio.run(here()) for _ in range(50))

    threads = [threading.Thread(target=play) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 400
    assert all(loop.is_closed() for loop, _ in things.pop_closed())
    assert not things


class Opened:
    """Counts what is opened and closed. `gate` holds the opening back, `fails` is what it raises."""

    def __init__(self):
        self.events, self.begun, self.gate, self.fails = [], asyncio.Event(), asyncio.Event(), None
        self.gate.set()
        self.fails_to_close = None
        self.tasks = set()
        self.shared = SharedResource(self.resource)

    @asynccontextmanager
    async def resource(self):
        self.tasks.add(asyncio.current_task())
        self.events.append("opening")
        self.begun.set()
        try:
            await self.gate.wait()
            if self.fails:
                raise self.fails
            self.events.append("open")
            yield len(self.events)
        finally:
            self.tasks.add(asyncio.current_task())
            await asyncio.sleep(0)  # closing takes its time
            self.events.append("closed")
            if self.fails_to_close:
                raise self.fails_to_close


async def test_first_users_at_once_open_it_once_and_one_task_opens_and_closes_it():
    opened = Opened()
    values = await asyncio.gather(*[opened.shared.get() for _ in range(20)])
    assert len(set(values)) == 1
    await opened.shared.close()
    assert opened.events == ["opening", "open", "closed"]
    (task,) = opened.tasks
    assert task is not asyncio.current_task()
    await opened.shared.close()  # safe to call twice
    assert opened.events == ["opening", "open", "closed"]


async def test_a_first_user_who_is_cancelled_leaves_the_opening_to_the_others():
    opened = Opened()
    opened.gate.clear()
    first, second = [asyncio.create_task(opened.shared.get()) for _ in range(2)]
    await opened.begun.wait()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    opened.gate.set()
    assert await second == 2
    assert opened.events == ["opening", "open"]
    await opened.shared.close()


async def test_closing_ends_an_opening_and_its_users_get_an_error():
    opened = Opened()
    opened.gate.clear()
    user = asyncio.create_task(opened.shared.get())
    await opened.begun.wait()
    await opened.shared.close()
    with pytest.raises(InfraError, match="was closed before it was open"):
        await user
    assert opened.events == ["opening", "closed"]
    opened.gate.set()
    assert await opened.shared.get() == 4, "the next user opens it again"
    await opened.shared.close()


async def test_all_users_see_why_it_cannot_be_opened_and_the_next_one_tries_again():
    opened = Opened()
    opened.fails = ZeroDivisionError("no server")
    results = await asyncio.gather(*[opened.shared.get() for _ in range(3)], return_exceptions=True)
    assert [str(result) for result in results] == ["no server"] * 3
    assert opened.events == ["opening", "closed"]
    opened.fails = None
    assert await opened.shared.get() == 4
    await opened.shared.close()


async def test_many_users_drop_a_broken_one_once_and_the_next_one_opens_after_it_is_closed():
    opened = Opened()
    value = await opened.shared.get()
    dropping = [asyncio.create_task(opened.shared.drop(value)) for _ in range(5)]
    again = asyncio.create_task(opened.shared.get())
    await asyncio.gather(*dropping)
    assert await again != value
    await opened.shared.drop(value)  # the old one: nothing happens
    assert opened.events == ["opening", "open", "closed", "opening", "open"]
    await opened.shared.close()


async def test_closing_that_fails_is_logged_in_one_line(caplog):
    opened = Opened()
    await opened.shared.get()
    opened.fails_to_close = OSError("no container engine")
    await opened.shared.close()
    assert [record.getMessage() for record in caplog.records] == [
        "closing Opened.resource failed: OSError: no container engine"
    ]


async def test_it_knows_no_variables_of_its_first_user():
    variable, seen = ContextVar("variable", default="none"), []

    @asynccontextmanager
    async def resource():
        seen.append(variable.get())
        yield

    variable.set("the first user's")
    shared = SharedResource(resource)
    await shared.get()
    await shared.close()
    assert seen == ["none"]


def test_a_loop_that_ends_closes_it():
    async def play():
        opened = Opened()
        await opened.shared.get()
        return opened

    assert asyncio.run(play()).events == ["opening", "open", "closed"]


@pytest.mark.parametrize("entered_by", [lambda opened: opened.shared.get(), lambda opened: enter(opened)])
def test_a_loop_that_ends_before_the_opening_begins_does_not_hang(entered_by):
    """Its task is cancelled before its first step."""

    async def play():
        opened = Opened()
        user = asyncio.create_task(entered_by(opened))
        await asyncio.sleep(0)  # the user has begun, and the opening is next
        (opening,) = [task for task in asyncio.all_tasks() if task.get_name().startswith("resource ")]
        opening.cancel()
        done, _ = await asyncio.wait([user], timeout=10)
        assert done, "it waits for an opening that never begins"
        with pytest.raises((InfraError, asyncio.CancelledError)):
            await user
        return opened

    assert asyncio.run(play()).events == []


async def enter(opened):
    return await Resources().enter(opened.resource())
