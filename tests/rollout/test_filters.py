"""Filters of groups: each drops what it says, and names the reason."""

from __future__ import annotations

import pytest

from agentrl import Task, Trajectory
from agentrl.errors import ConfigError
from agentrl.rollout.play.filters import OwnFilter, drop_reason
from agentrl.types import StopReason


def episode(reward):
    trajectory = Trajectory(Task(prompt="x"))
    trajectory.reward = reward
    trajectory.stop = StopReason.DONE
    return trajectory


def group(*rewards):
    return [episode(reward) for reward in rewards]


def test_own_functions():
    assert OwnFilter(lambda trajectories: len(trajectories) > 1, "pair")(group(1)) == "pair"
    assert OwnFilter(lambda trajectories: True, "pair")(group(1)) is None
    assert OwnFilter(lambda trajectories: None, "pair")(group(1)) is None
    assert OwnFilter(lambda trajectories: "boring", "pair")(group(1)) == "boring"
    with pytest.raises(ConfigError, match="filter pair returned 3; return True"):
        OwnFilter(lambda trajectories: 3, "pair")(group(1))


def test_the_first_reason_counts():
    filters = [OwnFilter(lambda trajectories: trajectories[0].reward != trajectories[1].reward, "equal")]
    filters.append(OwnFilter(lambda trajectories: trajectories[0].reward < 1 or "too_easy", "easy"))
    assert drop_reason(filters, group(1, 1)) == "equal"
    assert drop_reason(filters, group(1, 0.9)) == "too_easy"
    assert drop_reason(filters, group(0, 1)) is None
    assert drop_reason([], group(1, 1)) is None
