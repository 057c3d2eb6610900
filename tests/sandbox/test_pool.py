"""The pool: sandboxes are ready, used once, never too many, and none is left behind, whatever breaks."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import deque

import pytest

from agentrl import ConfigError, SandboxError
from agentrl.sandbox import Snapshot
from agentrl_sandbox import SandboxPool, SandboxSpec, lanes, pool, workshop
from agentrl_sandbox.machine import Machine
from tests.sandbox.yard import Yard, YardBox

A, B, C = (SandboxSpec(image=name) for name in "abc")


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(lanes, "_FIRST_PAUSE_S", 0.002)
    monkeypatch.setattr(lanes, "_LONGEST_PAUSE_S", 0.02)


def make(yard, spec=A, **given):
    return SandboxPool(yard, spec, **{"size": 4, "grade": 2, "create": 4, "rate": 1e6, **given})


async def until(condition):
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - what is waited for happens in the pool's own tasks
            await asyncio.sleep(0.001)


def ready(box_pool, lane="episode"):
    return box_pool.figures().lanes[lane].ready


# Handing out


async def test_sandboxes_are_ready_handed_out_at_once_and_replaced_by_new_ones():
    yard = Yard()
    async with make(yard, warm=2) as boxes:
        await until(lambda: ready(boxes) == 2 and ready(boxes, "grade") == 2)
        used = []
        for _ in range(6):
            async with boxes.acquire() as box:
                assert box in yard.open
                used.append(box)
            await until(lambda: ready(boxes) == 2)
        assert len(set(used)) == 6, "none is used twice"
        await until(lambda: not set(used) & yard.open)
        figures = boxes.figures()
        assert (figures.handed_out, figures.at_once, figures.removed) == (6, 6, 6)
    assert not yard.open
    assert yard.most <= 6


@pytest.mark.thorough
async def test_what_is_ready_takes_no_time():
    yard = Yard(slow=0.5)
    async with make(yard, warm=4) as boxes:
        await until(lambda: ready(boxes) == 4)
        began = time.perf_counter()
        async with boxes.acquire():
            assert time.perf_counter() - began < yard.slow / 2


async def test_never_more_than_size_and_the_first_come_first_served():
    yard = Yard(slow=0.002)
    order = []

    async def episode(boxes, i):
        async with boxes.acquire():
            order.append(i)
            assert boxes.figures().lanes["episode"].in_use <= 3
            await asyncio.sleep(0.001)

    async with make(yard, size=3, warm=1, create=1) as boxes:
        await asyncio.gather(*(episode(boxes, i) for i in range(20)))
        assert boxes.figures().wait.longest > 0
    assert order == list(range(20))
    assert yard.most <= 3 + 2
    assert not yard.open


async def test_grading_does_not_wait_for_episodes():
    """All episodes hold a sandbox while they are graded, and more wait for theirs."""
    yard = Yard()

    async def episode(boxes, all_in):
        async with boxes.acquire():
            await all_in.wait()
            async with boxes.acquire(lane="grade"):
                await asyncio.sleep(0)

    async with make(yard, size=4, grade=1) as boxes, asyncio.timeout(10):
        barrier = asyncio.Barrier(4)
        await asyncio.gather(*(episode(boxes, barrier) for _ in range(12)))
    assert yard.most <= 5
    assert not yard.open


async def test_what_is_asked_for_is_kept_ready_and_makes_way_for_what_is_asked_for_next():
    yard = Yard()
    async with make(yard, size=3, warm=3) as boxes, asyncio.timeout(10):
        await until(lambda: ready(boxes) == 3)
        async with boxes.acquire(B) as b, boxes.acquire(C) as c, boxes.acquire(B) as b2:
            assert [b.spec, c.spec, b2.spec] == [B, C, B]
        await until(lambda: ready(boxes) == 3)
        mine = sorted(box.spec.image for box in yard.open)
        assert mine == ["a", "a", "b", "b", "c"], "two of the lane for grading, three as asked for last"
    assert yard.most <= 5


async def test_the_files_of_a_snapshot_are_there_first():
    snapshot = Snapshot(b"", ("/work",))
    async with make(Yard()) as boxes, boxes.acquire(restore=snapshot) as box:
        assert box.restored is snapshot


async def test_a_snapshot_that_cannot_be_restored_costs_its_sandbox_and_no_place(monkeypatch):
    async def broken(self, snapshot):
        raise SandboxError("no room for it")

    yard = Yard()
    async with make(yard, size=1, grade=1, warm=0, wait_s=5) as boxes:
        monkeypatch.setattr(YardBox, "restore", broken)
        with pytest.raises(SandboxError, match="no room for it"):
            async with boxes.acquire(restore=Snapshot(b"", ())):
                pass
        async with boxes.acquire() as box:
            assert yard.open == {box}


async def test_nothing_is_kept_ready_in_the_place_of_what_somebody_waits_for():
    lane = lanes.Lane("episode", 2, deque([A, A], 2))
    assert lane.missing() == [A, A]
    lane.ask(B)
    assert lane.unmet() == [B]
    assert len(lane.missing()) == 1
    lane.ask(B)
    assert lane.missing() == []


async def test_an_image_that_came_late_is_used_at_once():
    """What could not be fetched ahead is asked for again, and that first sandbox does not fail of it."""
    yard = Yard()
    yard.missing.add("b")
    async with make(yard) as boxes:
        boxes.prefetch(["b"])
        await until(lambda: yard.asked["b"] == 1)
        await asyncio.sleep(0)
        yard.missing.clear()
        async with boxes.acquire(B):
            pass
        assert boxes.figures().failed == 0


async def test_a_pool_without_a_default_makes_nothing_ahead():
    yard = Yard()
    async with make(yard, None) as boxes:
        with pytest.raises(ConfigError, match="name one"):
            async with boxes.acquire():
                pass
        async with boxes.acquire(B) as box:
            assert box.spec == B
    assert yard.begun <= 1 + 1


# What breaks


async def test_a_back_end_that_fails_and_recovers():
    yard = Yard(errors=[SandboxError("engine down")] * 3)
    async with make(yard, warm=0) as boxes, asyncio.timeout(10):
        async with boxes.acquire():
            pass
        assert boxes.figures().failed == 3
    assert not yard.open


async def test_an_engine_that_stays_down_is_told_after_some_tries_and_is_not_asked_all_the_time(monkeypatch, caplog):
    monkeypatch.setattr(lanes, "_LONGEST_PAUSE_S", 5.0)
    yard = Yard(errors=[SandboxError("engine down")] * 1000, slow=0.005)
    async with make(yard, warm=0) as boxes, asyncio.timeout(10):

        async def one():
            with pytest.raises(SandboxError, match="no sandbox of image a can be made: engine down"):
                async with boxes.acquire():
                    pass

        await asyncio.gather(*(one() for _ in range(16)))
        await asyncio.sleep(0.02)
        assert boxes.figures().failed == 5
        waiting = asyncio.create_task(one())
        await asyncio.sleep(0.02)
        assert boxes.figures().failed <= 6, "one try at a time, after a pause"
        waiting.cancel()
    assert caplog.text.count("could not be made") == 1


async def test_nothing_is_asked_of_an_engine_that_is_down_while_nobody_waits_but_what_is_kept_ready():
    yard = Yard(errors=[SandboxError("engine down")] * 3)
    async with make(yard, warm=2) as boxes:
        await until(lambda: ready(boxes) == 2)
        assert boxes.figures().failed == 3


async def test_a_bug_of_the_back_end_is_told_as_a_sandbox_error(monkeypatch):
    monkeypatch.setattr(lanes, "_TRIES", 1)
    async with make(Yard(errors=[KeyError("Id")]), warm=0) as boxes:
        with pytest.raises(SandboxError, match="KeyError: 'Id'"):
            async with boxes.acquire():
                pass


async def test_a_spec_that_cannot_be_enforced_is_told_at_once():
    yard = Yard(errors=[ConfigError("network='open' needs docker")] * 9)
    async with make(yard, warm=0) as boxes:
        with pytest.raises(ConfigError, match="needs docker"):
            async with boxes.acquire(B):
                pass
        assert boxes.figures().failed == 1


async def test_a_missing_image_is_told_on_entry():
    yard = Yard()
    yard.missing.add("a")
    with pytest.raises(SandboxError, match="no image a"):
        await make(yard).__aenter__()


async def test_a_creation_that_hangs_has_a_deadline(monkeypatch):
    monkeypatch.setattr(workshop, "_MAKING_S", 0.01)
    monkeypatch.setattr(lanes, "_TRIES", 2)
    yard = Yard()
    async with make(yard, warm=0) as boxes, asyncio.timeout(10):
        yard.hang = asyncio.Event()
        with pytest.raises(SandboxError, match=r"making a sandbox took longer than 0.01 s"):
            async with boxes.acquire():
                pass
        yard.hang = None
        async with boxes.acquire():
            pass
    assert not yard.open


async def test_a_sandbox_that_died_while_it_was_ready_is_never_handed_out(monkeypatch, caplog):
    monkeypatch.setattr(pool, "_FRESH_S", 0.0)
    yard = Yard()
    async with make(yard, warm=3) as boxes:
        await until(lambda: ready(boxes) == 3)
        dead = set(yard.open)
        for box in dead:
            box.dead = "its memory was used up"
        async with boxes.acquire() as box:
            assert box not in dead
        assert boxes.figures().died >= 1
    assert "died before it was used" in caplog.text
    assert not yard.open


async def test_those_that_died_or_grew_old_are_replaced_before_anybody_asks(monkeypatch):
    monkeypatch.setattr(pool, "_TENDED_S", 0.005)
    yard = Yard()
    async with make(yard, SandboxSpec(image="a", lifetime_s=0.2), warm=1) as boxes:
        await until(lambda: ready(boxes) == 1 and ready(boxes, "grade") == 1)
        for box in list(yard.open):
            box.dead = "gone"
        await until(lambda: ready(boxes) == 1 and not any(box.dead for box in yard.open))
        first = set(yard.open)
        await until(lambda: ready(boxes) == 1 and not first & yard.open)
    assert not yard.open


async def test_one_that_is_taken_and_closed_while_it_is_asked_did_not_die(monkeypatch, caplog):
    monkeypatch.setattr(pool, "_TENDED_S", 0.001)
    yard, asked = Yard(), asyncio.Event()

    async def ping(box):
        asked.set()
        await until(lambda: box not in yard.open)
        raise SandboxError("closed")

    monkeypatch.setattr(YardBox, "ping", ping)
    async with make(yard, size=1, grade=1, warm=1) as boxes:
        await asked.wait()
        for lane in ("episode", "grade"):
            async with boxes.acquire(lane=lane):
                pass
        await until(lambda: boxes.figures().removed == 2)
        assert boxes.figures().died == 0
    assert "died" not in caplog.text


async def test_one_that_answers_late_is_kept_while_nobody_waits_for_it(monkeypatch):
    """As all do beside a training step in the same event loop."""
    monkeypatch.setattr(pool, "_TENDED_S", 0.001)
    monkeypatch.setattr(workshop, "_PING_S", 0.01)
    answers = []

    async def ping(box):
        await asyncio.sleep(0.03)
        answers.append(box)

    monkeypatch.setattr(YardBox, "ping", ping)
    async with make(Yard(), size=1, grade=1, warm=1) as boxes:
        await until(lambda: len(answers) >= 4)
        assert boxes.figures().died == 0


async def test_no_room_is_said_with_the_remedy():
    async with make(Yard(), size=1, wait_s=0.05) as boxes, boxes.acquire():
        with pytest.raises(SandboxError, match=r"no sandbox became free for 0.05 s: 1 of the 1 .* raise size"):
            async with boxes.acquire():
                pass


async def test_who_waits_long_in_a_queue_that_moves_is_not_told_so():
    """Twelve times 20 ms of waiting, with a patience of 100 ms."""

    async def episode(boxes):
        async with boxes.acquire():
            await asyncio.sleep(0.02)

    async with make(Yard(), size=1, wait_s=0.1) as boxes, asyncio.timeout(10):
        await asyncio.gather(*(episode(boxes) for _ in range(12)))
        assert boxes.figures().wait.longest > 0.1


async def test_a_sandbox_that_cannot_be_removed_takes_no_place(caplog):
    yard = Yard()
    async with make(yard, size=1, warm=0) as boxes, asyncio.timeout(10):
        for _ in range(2):
            async with boxes.acquire() as box:
                box.__class__ = type("Stuck", (type(box),), {"__aexit__": _fail})
        async with boxes.acquire():
            pass
        assert boxes.figures().left_behind == 2
    assert "could not be removed: SandboxError: stuck" in caplog.text


async def _fail(*args):
    raise SandboxError("stuck")


# The end


async def test_closing_with_episodes_inside_and_others_waiting():
    yard = Yard()
    boxes = make(yard, size=2)
    await boxes.__aenter__()
    held = [boxes.acquire() for _ in range(2)]
    for one in held:
        await one.__aenter__()
    waiting = asyncio.create_task(boxes.acquire().__aenter__())
    await asyncio.sleep(0.01)
    await boxes.__aexit__(None, None, None)
    assert not yard.open
    with pytest.raises(SandboxError, match="was closed"):
        await waiting
    for one in held:
        await one.__aexit__(None, None, None)
    with pytest.raises(SandboxError, match="not open"):
        await boxes.acquire().__aenter__()
    assert yard.closed == yard.begun - boxes.figures().failed, "each was closed once"


async def test_closing_while_sandboxes_are_made():
    yard = Yard()
    async with make(yard, warm=4):
        await asyncio.sleep(0)
        yard.hang = asyncio.Event()
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(0.01, yard.hang.set)
    assert not yard.open


async def test_a_cancelled_closing_leaves_nothing():
    yard = Yard()
    boxes = make(yard, warm=4)
    await boxes.__aenter__()
    await until(lambda: ready(boxes) == 4)
    yard.slow = 0.02
    closing = asyncio.create_task(boxes.__aexit__(None, None, None))
    await asyncio.sleep(0.001)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert not yard.open


def test_an_event_loop_that_ends_cancels_all_tasks_at_once_and_nothing_is_left():
    yard = Yard()

    async def main():
        boxes = make(yard, warm=4)
        await boxes.__aenter__()
        await until(lambda: ready(boxes) == 4)
        yard.slow = 0.01

        async def hold():
            try:
                async with boxes.acquire():
                    await asyncio.Event().wait()
            finally:
                await boxes.__aexit__(None, None, None)

        holder = asyncio.create_task(hold())
        async with boxes.acquire():
            pass
        return holder  # main ends here: the holder and the removal are cancelled

    asyncio.run(main())
    assert not yard.open


def test_two_event_loops_have_a_pool_each_and_may_not_share_one():
    yards, errors = [Yard(slow=0.002), Yard(slow=0.002)], []

    async def play(yard, other):
        async with make(yard) as boxes:

            async def episode():
                async with boxes.acquire(), boxes.acquire(lane="grade"):
                    await asyncio.sleep(0.001)

            await asyncio.gather(*(episode() for _ in range(10)))
            if other is not None:
                await asyncio.to_thread(asyncio.run, other(boxes))

    async def borrow(boxes):
        with pytest.raises(ConfigError, match="belongs to the event loop"):
            async with boxes.acquire():
                pass

    def run(yard, other=None):
        try:
            asyncio.run(play(yard, other))
        except Exception as exc:  # noqa: BLE001 - told in the main thread
            errors.append(exc)

    thread = threading.Thread(target=run, args=(yards[0],))
    thread.start()
    run(yards[1], borrow)
    thread.join()
    assert not errors
    assert not any(yard.open for yard in yards)


# Bounds


async def test_creations_are_bounded_in_number_and_in_rate():
    yard = Yard(slow=0.003)
    async with make(yard, size=12, warm=12, create=3) as boxes:
        await until(lambda: ready(boxes) == 12)
    assert yard.most_opening == 3
    began = time.perf_counter()
    async with make(Yard(), size=6, grade=1, warm=6, rate=100) as boxes:
        await until(lambda: ready(boxes) == 6)
    assert time.perf_counter() - began > 0.05


async def test_the_next_images_are_fetched_ahead(caplog):
    yard = Yard()
    yard.missing.add("gone")
    async with make(yard) as boxes:
        boxes.prefetch(["b", "c", "gone", "b"])
        await until(lambda: "image gone could not be fetched ahead: no image gone" in caplog.text)
        await until(lambda: "c" in yard.prepared)
        async with boxes.acquire(B):
            pass
    assert sorted(yard.prepared) == ["a", "b", "c"], "each once"


@pytest.mark.parametrize("wrong", [{"size": 0}, {"grade": -1}, {"create": 0}, {"rate": 0.0}, {"wait_s": 0.0}])
def test_numbers_that_make_no_sense(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        SandboxPool("fake", **wrong)


async def test_the_size_is_derived_from_the_machine_and_logged_once(monkeypatch, caplog):
    caplog.set_level("INFO", "agentrl")
    monkeypatch.setattr(pool, "_said", set())
    monkeypatch.setattr("agentrl_sandbox.machine.cores", lambda: 8.0)
    monkeypatch.setattr("agentrl_sandbox.machine.memory_mb", lambda: 64 << 10)
    for _ in range(2):
        async with SandboxPool("fake", SandboxSpec(memory_mb=2048), warm=0) as boxes:
            sizes = {name: lane.capacity for name, lane in boxes.figures().lanes.items()}
    assert sizes == {"episode": 18, "grade": 6, "tests": 6}
    said = [r.message for r in caplog.records if "at a time" in r.message]
    assert said == [
        "sandbox pool, fake: 18 sandboxes at a time for episodes, 6 for grading (8 cores, 64 GiB); "
        "SandboxPool(size=..., grade=...) changes that"
    ]


class Away(Yard):
    """A back end whose sandboxes run on another machine."""

    machine = Machine(64.0, 512 << 10)


async def test_the_size_follows_the_machine_on_which_the_sandboxes_run(monkeypatch, caplog):
    caplog.set_level("INFO", "agentrl")
    monkeypatch.setattr(pool, "_said", set())
    monkeypatch.setattr("agentrl_sandbox.machine.cores", lambda: 1.0)
    monkeypatch.setattr("agentrl_sandbox.machine.memory_mb", lambda: 2 << 10)
    async with SandboxPool(Away(), SandboxSpec(memory_mb=2048), warm=0) as boxes:
        sizes = {name: lane.capacity for name, lane in boxes.figures().lanes.items()}
    assert (sizes["episode"], sizes["grade"]) == (144, 48)
    assert "(64 cores, 512 GiB)" in caplog.text


# The storm


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(2))
async def test_500_episodes_that_end_in_every_way(seed, monkeypatch):  # noqa: C901  all in one storm
    """They take, fail, are cancelled at any moment, die while ready; the engine fails now and then."""
    monkeypatch.setattr(pool, "_FRESH_S", 0.0)
    monkeypatch.setattr(pool, "_TENDED_S", 0.003)
    chance = random.Random(seed)
    yard = Yard(slow=0.002, seed=seed)
    seen, most = [], {"episode": 0, "grade": 0, "tests": 0}

    async def episode(boxes):
        lane = chance.choice(["episode", "episode", "grade", "tests"])
        async with boxes.acquire(chance.choice([A, A, A, B, C]), lane=lane) as box:
            assert box in yard.open
            seen.append(box)
            for name, figures in boxes.figures().lanes.items():
                most[name] = max(most[name], figures.in_use + figures.ready + figures.making + figures.removing)
            if lane == "episode" and chance.random() < 0.3:
                async with boxes.acquire(lane="grade"):
                    pass
            await asyncio.sleep(chance.random() * 0.004)
            if chance.random() < 0.2:
                raise ValueError("the episode broke")

    async def trouble():
        while True:
            await asyncio.sleep(0.01)
            yard.errors.extend([SandboxError("engine down"), *[None] * 4] * chance.randrange(2))
            for box in yard.open:
                if chance.random() < 0.05:
                    box.dead = "it died"

    async with asyncio.timeout(60), make(yard, size=5, grade=2, warm=3, create=3) as boxes:
        breaking = asyncio.create_task(trouble())
        playing = []
        for _ in range(500):
            playing.append(asyncio.create_task(episode(boxes)))
            if chance.random() < 0.3:
                asyncio.get_running_loop().call_later(chance.random() ** 3 * 0.5, playing[-1].cancel)
            await asyncio.sleep(chance.random() * 0.001)
        results = await asyncio.gather(*playing, return_exceptions=True)
        breaking.cancel()
        await until(lambda: not any(lane.in_use for lane in boxes.figures().lanes.values()))
        assert [lane.waiting for lane in boxes.figures().lanes.values()] == [0, 0, 0]
        figures = boxes.figures()
    kinds = {type(result) for result in results}
    assert kinds - {SandboxError} == {type(None), ValueError, asyncio.CancelledError}
    assert {str(e) for e in results if isinstance(e, SandboxError)} <= {
        f"no sandbox of image {name} can be made: engine down" for name in "abc"
    }
    assert len(seen) == len(set(seen)), "none is used twice"
    assert len(seen) > 250
    assert figures.failed
    assert figures.died
    assert most["episode"] <= 5
    assert most["grade"] <= 2
    assert most["tests"] <= 2
    assert yard.most <= 9
    assert not yard.open
    assert figures.left_behind == 0
    print(f"\n{figures}")
