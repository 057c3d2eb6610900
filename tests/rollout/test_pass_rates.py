"""Tasks drawn by the pass rates of their groups so far."""

from __future__ import annotations

import json
import random

import pytest
from agentrl.rollout.data.pass_rates import pass_rate

from agentrl import StopReason, Task, Trajectory
from agentrl.errors import ConfigError
from agentrl.rollout import TaskStream


def tasks(n, levels=None):
    return [
        Task(prompt="x", id=str(i), metadata={} if levels is None else {"difficulty": levels[i % len(levels)]})
        for i in range(n)
    ]


def ids(taken):
    return [task.id for task in taken]


def episode(reward, stop=StopReason.DONE):
    trajectory = Trajectory()
    trajectory.reward, trajectory.stop = reward, stop
    return trajectory


def test_a_pass_rate_is_the_mean_reward_of_the_episodes_that_count():
    failed = episode(None, StopReason.FAILED)
    assert pass_rate([episode(1.0), episode(0.0), episode(0.5), failed]) == 0.5
    assert pass_rate([episode(-3.0), episode(7.0)]) == 0.5, "cut to 0 to 1"
    assert pass_rate([failed, failed]) is None
    assert pass_rate([episode(None)]) is None


def test_without_a_window_nothing_is_left_out():
    plain, open_window = (TaskStream(tasks(7), 0, pass_rates=window) for window in (None, (0.0, 1.0)))
    for _ in range(10):
        taken = plain.take(3)
        found = open_window.take(3)
        assert ids(taken) == ids(found)
        for task, other in zip(taken, found, strict=True):
            plain.record(int(task.id), 0.0)
            open_window.record(int(other.id), 0.0)
    assert plain.metrics() == {}


def test_a_task_outside_of_the_window_rests_longer_each_time():
    """Of four tasks, 3 is never passed. It is drawn in epochs 0, 2, 5 and 9, and the others in each."""
    stream, drawn = TaskStream(tasks(4), 0, pass_rates=(0.1, 0.9)), []
    for epoch in range(10):
        taken = stream.take(4 if epoch in (0, 2, 5, 9) else 3)
        drawn.append("3" in ids(taken))
        assert {"0", "1", "2"} <= set(ids(taken))
        for task in taken:
            stream.record(int(task.id), 0.0 if task.id == "3" else 0.1)
        assert stream.metrics() == {"resting_tasks": 1}
    assert drawn == [True, False, True, False, False, True, False, False, False, True]


def test_a_task_that_comes_into_the_window_rests_no_more():
    stream = TaskStream(tasks(2), 0, pass_rates=(0.1, 0.9))
    for task in stream.take(2):
        stream.record(int(task.id), 1.0 if task.id == "0" else 0.5)
    assert ids(stream.take(1)) == ["1"]
    for task in stream.take(2):  # both, in the epoch after the rest
        stream.record(int(task.id), 0.5)
    assert stream.metrics() == {"resting_tasks": 0}
    for task in stream.take(2):
        stream.record(int(task.id), 1.0 if task.id == "0" else 0.5)
    ((times, _),) = stream.state_dict()["pass_rates"].values()
    assert times == 1, "it rests for one epoch again, not two"


def test_a_set_without_a_task_in_the_window_is_drawn_all_the_same():
    stream = TaskStream(tasks(2), 0, pass_rates=(0.1, 0.9))
    for _ in range(20):
        for task in stream.take(5):  # more than there are
            stream.record(int(task.id), 1.0)


def test_the_next_level_begins_when_the_last_is_passed():
    stream = TaskStream(tasks(40, levels=[3, 1, 2, 2]), 0, curriculum=0.75)
    for level, difficulties in enumerate([{1}, {1, 2}, {1, 2, 3}], 1):
        taken = stream.take(100)
        assert {task.metadata["difficulty"] for task in taken} == difficulties
        assert stream.metrics() == {"curriculum_level": level, "curriculum_levels": 3}
        of_level = [task for task in taken if task.metadata["difficulty"] == max(difficulties)]
        for task in taken:
            if task not in of_level:
                stream.record(int(task.id), 1.0)  # easy ones count for nothing
        for task, rate in zip(of_level[:16], [1.0] * 11 + [0.0] * 5, strict=True):
            stream.record(int(task.id), rate)
        assert stream.metrics()["curriculum_level"] == level, "11 of 16 is not enough"
        stream.record(int(of_level[0].id), 1.0)  # still 11: the oldest leaves
        for task in of_level[:16]:
            stream.record(int(task.id), 1.0)
    assert stream.metrics()["curriculum_level"] == 3


def test_many_difficulties_are_ten_levels():
    rates = [i / 1000 for i in range(200)]
    stream = TaskStream(tasks(200, levels=rates), 0, curriculum=0.5)
    assert stream.metrics()["curriculum_levels"] == 10
    assert {task.metadata["difficulty"] for task in stream.take(100)} == set(rates[:20]), "five epochs of the easiest"


@pytest.mark.parametrize(
    ("metadata", "says"),
    [
        ({}, "task 1 has no difficulty in its metadata; give every task a number, such as"),
        ({"difficulty": "hard"}, "task 1 has difficulty 'hard' in its metadata"),
        ({"difficulty": True}, "task 1 has difficulty True"),
        ({"difficulty": float("nan")}, "task 1 has difficulty nan"),
    ],
)
def test_a_task_without_a_difficulty_is_refused(metadata, says):
    with pytest.raises(ConfigError) as error:
        TaskStream([*tasks(1, [1]), Task(prompt="x", id="1", metadata=metadata)], 0, curriculum=0.5)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def played(stream, rng, steps):
    found = []
    for _ in range(steps):
        taken = stream.take(5)
        found += ids(taken)
        for task in taken:
            stream.record(int(task.id), rng.random() * (int(task.id) % 4 != 0))
    return found


@pytest.mark.parametrize("steps", [0, 1, 4, 13])
def test_a_restored_stream_draws_the_same_tasks(steps):
    def stream(n=12):
        return TaskStream(tasks(n, levels=[1, 2, 3]), 4, pass_rates=(0.2, 0.8), curriculum=0.3)

    straight, rng = stream(), random.Random(1)
    played(straight, rng, steps)
    saved, state = json.loads(json.dumps(straight.state_dict())), rng.getstate()
    expected = played(straight, rng, 20)

    again = stream()
    again.load_state_dict(saved)
    rng.setstate(state)
    assert played(again, rng, 20) == expected
    assert again.state_dict() == straight.state_dict()
    fewer = stream(6)
    fewer.load_state_dict(saved, accept_changes=True)
    played(fewer, rng, 5)


def test_a_state_is_a_copy():
    stream = TaskStream(tasks(4, levels=[1]), 0, pass_rates=(0.2, 0.8), curriculum=1.0)
    state = stream.state_dict()
    before = json.dumps(state)
    for task in stream.take(4):
        stream.record(int(task.id), 0.0)
    assert json.dumps(state) == before != json.dumps(stream.state_dict())
