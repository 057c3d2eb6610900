"""The rollout loop: how far it plays ahead, what is too old, what an exception or a cancellation leaves."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field

import pytest

from agentrl.errors import ConfigError, EngineLostError
from agentrl.rollout.loop.group_loop import ABORTED, GroupLoop


@dataclass(eq=False)
class Group:
    number: int
    born: int
    tries: int = 1
    end: asyncio.Event = field(default_factory=asyncio.Event)
    outcome: object = None


class Source:
    """Hands out numbered groups, those that were put back first."""

    def __init__(self, most=10**6):
        self.groups, self.waiting, self.gone, self.most = [], [], Counter(), most
        self.second = asyncio.Event()

    def take(self, version):
        if self.waiting:
            group = self.waiting.pop(0)
            group.tries, group.end = group.tries + 1, asyncio.Event()
            group.born = version
            return group
        if len(self.groups) == self.most:
            return None
        self.groups.append(Group(len(self.groups), version))
        if len(self.groups) == 2:
            self.second.set()
        return self.groups[-1]

    def put_back(self, group, *, anew):
        self.gone["anew" if anew else "put_back"] += 1
        self.waiting.append(group)

    def drop(self, group, reason):
        self.gone[reason] += 1


async def play(group):
    await group.end.wait()
    if isinstance(group.outcome, BaseException):
        raise group.outcome
    return group.outcome


def numbers(groups):
    return [group.number for group in groups]


async def settled():
    for _ in range(10):
        await asyncio.sleep(0)


def end(source, *which):
    for number in which:
        source.groups[number].end.set()


@pytest.fixture
async def make():
    loops = []

    def build(source, **values):
        loops.append(GroupLoop(source, play, **{"groups": 2, **values}))
        return loops[-1]

    yield build
    for loop in loops:
        await loop.stop()
        assert loop.playing == 0
    own = {asyncio.current_task()}
    assert [task for task in asyncio.all_tasks() - own if task.get_coro().__name__ in ("play", "_started")] == []


async def test_it_plays_as_far_ahead_as_the_bound_allows(make):
    source = Source()
    loop = make(source, staleness=1)
    loop.begin(0, 0)
    assert len(source.groups) == 4  # two steps: the present one, and one ahead
    end(source, 2, 0)
    assert numbers(await loop.take(1)) == [0, 2]
    assert len(source.groups) == 4  # 1 and 3 are of step 2; more would be too old in step 3
    loop.advance(1)
    assert len(source.groups) == 6
    end(source, 5, 1, 3)
    await settled()
    assert loop.ready == 3
    assert numbers(await loop.take(2)) == [1, 3]  # the oldest first, although 5 ended before
    assert (loop.ready, loop.playing) == (1, 1)


async def test_nothing_begins_for_steps_after_the_last(make):
    source = Source()
    make(source, staleness=5, steps=3).begin(0, 0)
    assert len(source.groups) == 6


async def test_only_as_many_begin_as_are_wanted(make):
    source, room = Source(), [True]
    loop = make(source, staleness=9, hungry=lambda: len(source.groups) < 3 or room[0] is None)
    loop.begin(0, 0)
    assert len(source.groups) == 3
    room[0] = None
    loop.fill()
    assert len(source.groups) == 20


async def test_a_group_that_never_ends_keeps_no_other_out_while_a_step_waits(make, monkeypatch):
    monkeypatch.setattr("agentrl.rollout.loop.group_loop.LOOK_S", 0.01)
    source, stuck = Source(), set()
    loop = make(source, groups=1, staleness=0, steps=1, late=lambda groups: stuck & {group.number for group in groups})
    loop.begin(0, 0)
    step = asyncio.create_task(loop.take(1))
    await settled()
    assert len(source.groups) == 1
    stuck.add(0)
    async with asyncio.timeout(30):
        await source.second.wait()
        end(source, 1)
        assert numbers(await step) == [1]
    assert len(source.groups) == 2, "another begins once, and none when the step has its groups"


async def test_a_late_group_is_trained_if_it_ends_first(make, monkeypatch):
    monkeypatch.setattr("agentrl.rollout.loop.group_loop.LOOK_S", 0.01)
    source = Source()
    loop = make(source, groups=1, staleness=0, steps=2, late=lambda groups: {group.number for group in groups} & {0})
    loop.begin(0, 0)
    step = asyncio.create_task(loop.take(1))
    async with asyncio.timeout(30):
        await source.second.wait()
        end(source, 0)
        assert numbers(await step) == [0]


async def late(loop, source):
    """Group 0 is begun in step 1 and ends in no step."""
    loop.begin(0, 0)
    for step in (1, 2, 3):
        end(source, *[group.number for group in source.groups if group.number])
        await loop.take(step)
        loop.advance(step)
    await settled()


@pytest.mark.parametrize(
    ("stale", "counted"), [("drop", {"stale": 1}), ("retry", {"anew": 1, "stale": 1}), ("mask", {})]
)
async def test_a_group_that_is_too_old(make, stale, counted):
    source = Source()
    loop = make(source, staleness=1, stale=stale)
    await late(loop, source)
    first = source.groups[0]
    assert source.gone == counted
    assert first.tries == (2 if stale == "retry" else 1)  # too old again, two steps later
    if stale == "mask":
        first.end.set()
        end(source, *range(1, len(source.groups)))
        await settled()
        assert numbers(await loop.take(4))[0] == 0


async def test_a_group_that_is_taken_or_dropped_is_not_remembered(make):
    for outcome in (None, "env_failure"):
        source = Source()
        loop = make(source, staleness=3, stale="retry")
        loop._retried.add(0)  # as if it had been too old
        loop.begin(0, 0)
        source.groups[0].outcome = outcome
        end(source, *range(len(source.groups)))
        await loop.take(1)
        assert loop._retried == set()


async def test_a_group_within_the_bound_is_kept(make):
    source = Source()
    loop = make(source, staleness=3)
    await late(loop, source)
    assert not source.gone
    end(source, *range(len(source.groups)))
    await settled()
    assert numbers(await loop.take(4))[0] == 0


async def test_a_sync_rollout_takes_the_first_that_end_and_puts_the_others_back(make):
    source = Source()
    loop, cuts = make(source), []
    collecting = asyncio.create_task(loop.collect(0, 4))
    await settled()
    assert len(source.groups) == 4
    end(source, 3, 1)
    assert numbers(await collecting) == [1, 3]

    async def cut():
        assert loop.stopping
        cuts.append(loop.playing)
        for group in (source.groups[0], source.groups[2]):
            group.outcome = ABORTED
            group.end.set()

    await loop.abort(cut)
    assert (cuts, loop.playing, loop.stopping) == ([2], 0, False)
    assert source.gone == {"put_back": 2}
    assert numbers(source.waiting) == [0, 2]


async def test_complete_groups_of_a_sync_rollout_wait_or_begin_anew(make):
    for partial_groups in (True, False):
        source = Source()
        loop = make(source)
        collecting = asyncio.create_task(loop.collect(0, 4))
        await settled()
        end(source, 0, 1, 2, 3)
        assert numbers(await collecting) == [0, 1]

        async def nothing():
            pass

        await loop.abort(nothing, partial_groups=partial_groups)
        assert loop.ready == (2 if partial_groups else 0)
        assert source.gone == ({} if partial_groups else {"anew": 2})


async def test_groups_that_are_not_wanted_are_replaced(make):
    source = Source()
    loop = make(source, drop_reason=lambda group: "even" if group.number % 2 == 0 else None)
    collecting = asyncio.create_task(loop.collect(0, 2))
    for _ in range(8):
        await settled()
        end(source, *range(len(source.groups)))
    assert numbers(await collecting) == [1, 3]
    assert source.gone == {"even": 2}


async def test_a_failed_group_is_dropped_with_its_reason(make):
    source = Source()
    loop = make(source, staleness=1)
    loop.begin(0, 0)
    source.groups[1].outcome = "env_failure"
    end(source, 0, 1, 2)
    assert numbers(await loop.take(1)) == [0, 2]
    assert source.gone == {"env_failure": 1}


async def test_the_data_ends(make):
    source = Source(most=3)
    loop = make(source, staleness=1)
    loop.begin(0, 0)
    end(source, 0, 1, 2)
    await loop.take(1)
    with pytest.raises(ConfigError, match="step 2: the data has ended"):
        await loop.take(2)


async def test_an_engine_that_dies_while_groups_wait_ends_all(make):
    source = Source()
    loop = make(source, staleness=1)
    loop.begin(0, 0)
    end(source, 0)
    taking = asyncio.create_task(loop.take(1))
    await settled()
    source.groups[2].outcome = EngineLostError("gone")
    end(source, 2)
    with pytest.raises(EngineLostError, match="gone"):
        await taking
    await settled()
    assert (loop.playing, loop.stopping) == (0, True)
    assert loop.ready == 1  # it ended before, and its tokens are good
    assert source.gone == {"put_back": 3}


@pytest.mark.parametrize("where", ["wanted", "drop", "put_back", "take"])
async def test_an_exception_of_the_source_or_of_a_filter_ends_the_run(make, where):
    class Broken(Source):
        def take(self, version):
            return fails() if where == "take" and len(self.groups) == 4 else super().take(version)

        def drop(self, group, reason):
            return fails() if where == "drop" else super().drop(group, reason)

        def put_back(self, group, *, anew):
            return fails() if where == "put_back" and not broken else super().put_back(group, anew=anew)

    def fails():
        broken.append(where)
        raise ValueError(f"{where} is broken")

    broken, outcomes = [], {"drop": "env_failure", "take": "env_failure", "put_back": ABORTED}
    source = Broken()
    loop = make(source, staleness=1, drop_reason=lambda group: fails() if where == "wanted" else None)
    loop.begin(0, 0)
    source.groups[1].outcome = outcomes.get(where)
    end(source, 1)
    with pytest.raises(ValueError, match=f"{where} is broken"):
        await asyncio.wait_for(loop.take(1), 5)
    await settled()
    assert (loop.playing, loop.stopping) == (0, True)


async def test_a_cancelled_trainer_leaves_no_task(make):
    source = Source()
    loop = make(source, staleness=1)
    loop.begin(0, 0)
    taking = asyncio.create_task(loop.take(1))
    await settled()
    taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taking
    assert loop.playing == 4  # the caller decides
    await loop.stop()
    assert loop.playing == 0
    assert source.gone == {"put_back": 4}
    await loop.stop()


async def test_groups_that_have_not_begun_are_put_back_too(make):
    source = Source()
    loop = make(source, staleness=1)
    loop.begin(0, 0)  # no task has run yet
    await loop.stop()
    assert source.gone == {"put_back": 4}
    loop.begin(0, 0)
    await settled()
    assert loop.playing == 4
    assert numbers(source.groups) == [0, 1, 2, 3]
