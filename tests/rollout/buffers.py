"""A small buffer, and groups that are played without an engine."""

from __future__ import annotations

from agentrl.rollout import TaskStream
from agentrl.rollout.loop.buffer import GroupBuffer
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import Task


def buffer(n=5, group_size=2, **values):
    epochs = values.pop("epochs", 1)
    tasks = [Task(prompt=f"task {i}", id=str(i)) for i in range(n)]
    return GroupBuffer(TaskStream(tasks, 0, epochs=epochs), group_size, **values)


def played(group):
    return [Trajectory(group.task) for _ in group.members]


def play(own, group):
    own.finished(group, played(group))
    return group
