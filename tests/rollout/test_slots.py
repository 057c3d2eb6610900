"""Slots of episodes in flight: bounded, in order, shared with an evaluation, and never lost to a cancellation."""

from __future__ import annotations

import asyncio

from agentrl.rollout.loop.slots import EpisodeSlots


async def settled():
    for _ in range(6):
        await asyncio.sleep(0)


class Episodes:
    """Episodes that hold a slot until they are told to end."""

    def __init__(self, slots):
        self.slots, self.playing, self.tasks = slots, [], {}

    def begin(self, name, use="train"):
        self.tasks[name] = asyncio.create_task(self._play(name, use))

    async def _play(self, name, use):
        async with self.slots.one(use):
            self.playing.append(name)
            await asyncio.Event().wait()

    async def end(self, *names):
        for name in names:
            self.tasks[name].cancel()
        await settled()
        self.playing = [name for name in self.playing if name not in names]


async def test_slots_are_given_in_order():
    free = []
    slots = EpisodeSlots(2, on_free=lambda: free.append(slots.free("train")))
    episodes = Episodes(slots)
    for name in "abcd":
        episodes.begin(name)
    await settled()
    assert episodes.playing == ["a", "b"]
    await episodes.end("c")  # it waits, and gives its claim up
    await episodes.end("a")
    assert episodes.playing == ["b", "d"]
    assert free == []
    await episodes.end("b", "d")
    assert free[-1] == 2
    assert slots.room("train") == 2


async def test_a_seat_that_was_given_in_the_moment_of_a_cancellation_is_not_lost():
    slots = EpisodeSlots(1)
    episodes = Episodes(slots)
    for name in "abc":
        episodes.begin(name)
    await settled()
    episodes.tasks["a"].cancel()
    await asyncio.sleep(0)  # a has given its slot to b, which has not run since
    episodes.tasks["b"].cancel()
    await settled()
    assert episodes.playing == ["a", "c"]
    await episodes.end("a", "c")
    assert slots.room("train") == 1


async def test_an_evaluation_gets_its_share_as_episodes_end():
    slots = EpisodeSlots(4)
    episodes = Episodes(slots)
    for name in "abcd":
        episodes.begin(name)
    await settled()
    with slots.reserve(2):
        for name in "12345":
            episodes.begin(name, "eval")
        episodes.begin("e")
        await settled()
        assert episodes.playing == ["a", "b", "c", "d"]
        await episodes.end("a", "b")
        assert episodes.playing == ["c", "d", "1", "2"]
        await episodes.end("c")  # training has one slot of its two left
        assert episodes.playing == ["d", "1", "2", "e"]
        await episodes.end("1")
        assert episodes.playing == ["d", "2", "e", "3"]
        assert (slots.taken("train"), slots.taken("eval")) == (2, 2)
        await episodes.end("2", "3", "4", "5")
        episodes.begin("f")
        await settled()
        assert episodes.playing == ["d", "e", "f"]  # evaluation has no use for its share any more
    await episodes.end("d", "e", "f")


async def test_without_a_reservation_an_evaluation_may_have_all():
    slots = EpisodeSlots(2)
    episodes = Episodes(slots)
    for name in "123":
        episodes.begin(name, "eval")
    await settled()
    assert episodes.playing == ["1", "2"]
    with slots.reserve(5):
        assert slots.reserved == 1  # one is left for training
    await episodes.end("1", "2", "3")


async def test_of_a_single_seat_nothing_is_reserved():
    slots = EpisodeSlots(1)
    with slots.reserve(1):
        episodes = Episodes(slots)
        episodes.begin("a")
        await settled()
        assert episodes.playing == ["a"]
        await episodes.end("a")
