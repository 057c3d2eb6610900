"""The buffer of groups: where each group is, what is handed out next, and that nothing is trained twice."""

from __future__ import annotations

import json

import pytest

from agentrl.trajectory.trajectory import Trajectory
from tests.rollout.buffers import buffer, play, played


def rest(own):
    """The task of each group that is handed out from here on."""
    found = []
    while (group := own.take()) is not None:
        found.append(group.task.id)
    return found


def test_each_task_is_handed_out_once_with_a_number():
    own = buffer()
    groups = [own.take(version=3) for _ in range(5)]
    assert own.take() is None
    assert sorted(group.task.id for group in groups) == list("01234")
    assert [group.number for group in groups] == list(range(5))
    assert {group.born for group in groups} == {3}
    assert groups[0].members == [None, None]
    assert not groups[0].ended
    assert own.depths() == {"playing": 5, "waiting": 0, "finished": 0}


def test_a_group_goes_its_way_once():
    own = buffer()
    group = own.take()
    with pytest.raises(ValueError, match="group 0 is playing, not finished"):
        own.trained(1, [group])
    own.finished(group, played(group))
    assert group.ended
    own.trained(1, [group])
    for again in (lambda: own.trained(1, [group]), lambda: own.drop(group, "x"), lambda: own.put_back(group)):
        with pytest.raises(ValueError, match="group 0 is gone"):
            again()
    assert own.trained_groups == 1
    assert not own.dropped


def test_what_was_put_back_comes_first_with_its_members():
    own = buffer()
    first, second = own.take(version=1), own.take(version=1)
    kept = Trajectory(first.task)
    own.put_back(second)
    own.put_back(first, [kept])
    again, then = own.take(version=4), own.take(version=4)
    assert [again, then] == [second, first]
    assert first.members == [kept, None]
    assert (first.attempts, first.born, second.born) == (1, 1, 4), "a group without members is born anew"
    assert own.take().number == 2


def test_a_drop_is_counted_by_its_reason():
    own = buffer()
    a, b, c = (own.take() for _ in range(3))
    own.put_back(a)
    own.drop(a, "staleness")
    own.drop(b, "filter")
    play(own, c)
    own.drop(c, "filter")
    assert own.dropped == {"staleness": 1, "filter": 2}
    assert own.depths() == {"playing": 0, "waiting": 0, "finished": 0}
    assert len(rest(own)) == 2


def test_a_filter_that_swallows_groups_drops_them_visibly():
    def last_only(args, rollout_id, waiting, count):
        taken = waiting[-1:]
        waiting.clear()
        return taken

    own = buffer(policy=last_only)
    groups = [own.take() for _ in range(3)]
    for group in groups:
        own.put_back(group)
    assert own.take() is groups[2]
    assert own.dropped == {"buffer_filter": 2}


def test_a_filter_gets_what_slimes_get():
    seen = []

    def none(args, rollout_id, waiting, count):
        seen.append((args, rollout_id, list(waiting), count))
        return []

    own = buffer(policy=none, args="flags")
    group = own.take()
    own.put_back(group)
    assert own.take().number == 1, "it took none: a fresh one"
    assert seen == [("flags", 0, [group], 1)]


def test_a_filter_that_gives_more_than_asked_for_loses_none():
    def everything(args, rollout_id, waiting, count):
        taken = list(waiting)
        waiting.clear()
        return taken

    own = buffer(policy=everything)
    groups = [own.take() for _ in range(3)]
    for group in groups:
        own.put_back(group)
    assert [own.take() for _ in range(3)] == groups


def test_whatever_is_not_gone_is_handed_out_again_after_a_restore():
    own = buffer(8)
    a, b, c, d, e = (own.take() for _ in range(5))
    play(own, a)
    own.trained(1, [a])
    play(own, b)
    own.put_back(c, [Trajectory(c.task)])
    own.drop(d, "filter")
    state = json.loads(json.dumps(own.state()))
    after = [own.take().task.id for _ in range(4)]
    assert after[0] == c.task.id

    again = buffer(8)
    again.restore(state)
    assert again.dropped == {"filter": 1}
    assert again.trained_groups == 1
    assert [again.take().number for _ in range(3)] == [b.number, e.number, c.number]
    assert rest(again) == after[1:], "the rest of the data is drawn as it would have been"


@pytest.mark.parametrize("moment", range(12))
def test_trained_once_whenever_it_is_restored(moment):
    """Take, finish and train in turns; go back to a moment's state, and go on from there."""
    own, log, states = buffer(6, epochs=2), [], []
    for step in range(1, 13):
        states.append((json.loads(json.dumps(own.state())), len(log)))
        first, second = own.take(), own.take() if step % 2 else None
        if second is not None:
            own.put_back(second)
        play(own, first)
        own.trained(step, [first])
        log.append((first.epoch, first.task.id))
    assert len(set(log)) == 12

    state, done = states[moment]
    own = buffer(6, epochs=2)
    own.restore(state)
    del log[done:]
    while (group := own.take()) is not None:
        own.trained(len(log), [play(own, group)])
        log.append((group.epoch, group.task.id))
    assert len(log) == len(set(log)) == 12
