"""Filters of groups: each drops what it says, and names the reason."""

from __future__ import annotations

import pytest

from agentrl import Env, Task, Trajectory, run_episode, tool
from agentrl.engine import ScriptedEngine
from agentrl.errors import ConfigError
from agentrl.rollout.play.filters import OwnFilter, PassRate, ResponseLength, ToolUse, drop_reason
from agentrl.testing import call
from agentrl.types import StopReason


def episode(reward):
    trajectory = Trajectory(Task(prompt="x"))
    trajectory.reward = reward
    trajectory.stop = StopReason.DONE
    return trajectory


def group(*rewards):
    return [episode(reward) for reward in rewards]


@pytest.mark.parametrize(
    ("rewards", "reason"), [((0, 1), None), ((0, 0), "too_hard"), ((1, 5), "too_easy"), ((None,), "no_reward")]
)
def test_pass_rate(rewards, reason):
    assert PassRate(0.2, 0.8)(group(*rewards)) == reason


def test_own_functions():
    assert OwnFilter(lambda trajectories: len(trajectories) > 1, "pair")(group(1)) == "pair"
    assert OwnFilter(lambda trajectories: True, "pair")(group(1)) is None
    assert OwnFilter(lambda trajectories: None, "pair")(group(1)) is None
    assert OwnFilter(lambda trajectories: "boring", "pair")(group(1)) == "boring"
    with pytest.raises(ConfigError, match="filter pair returned 3; return True"):
        OwnFilter(lambda trajectories: 3, "pair")(group(1))


def test_the_first_reason_counts():
    filters = [OwnFilter(lambda trajectories: trajectories[0].reward != trajectories[1].reward, "equal")]
    filters.append(PassRate(0.2, 0.8))
    assert drop_reason(filters, group(1, 1)) == "equal"
    assert drop_reason(filters, group(1, 0.9)) == "too_easy"
    assert drop_reason(filters, group(1, 0)) is None
    assert drop_reason([], group(1, 1)) is None


class Asking(Env):
    @tool
    async def look(self) -> str:
        """Look."""
        return "found"

    def score(self, trajectory):
        return 1.0


async def test_tokens_and_tools_of_real_episodes(renderer):
    async def play(*turns):
        return await run_episode(Asking(), Task(prompt="x"), engine=ScriptedEngine(turns, renderer), renderer=renderer)

    asked, silent = await play(call("look"), "found"), await play("no")
    lengths = [trajectory.segment.response_length for trajectory in (asked, silent)]
    assert lengths[0] > lengths[1]
    assert ToolUse(1)([asked, silent]) is None
    assert ToolUse(2)([asked, silent]) == ToolUse(1)([silent]) == "no_tool_use"
    assert ResponseLength(sum(lengths) / 2)([asked, silent]) is None
    assert ResponseLength(sum(lengths) / 2 - 0.1)([asked, silent]) == "too_long"
