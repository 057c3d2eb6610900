"""What a set of episodes comes to: the figures that every run reports."""

from __future__ import annotations

import pytest

from agentrl import Env, Ledger, Limits, Task, tool
from agentrl.rollout import Evaluation
from agentrl.testing import call, rollout

BROKEN = '<tool_call>\n{"name": "search"'


class Capitals(Env):
    @tool
    async def search(self, query: str) -> str:
        """Search the encyclopedia."""
        return {"France": "Paris"}[query]

    def score(self, trajectory):
        return float(trajectory.answer == "Paris")


@pytest.fixture
async def found(renderer):
    async def play(*turns, **limits):
        return await rollout(Capitals(), Task(prompt="?"), turns, renderer=renderer, limits=Limits(**limits))

    return Evaluation.of(
        [
            await play(call("search", query="France"), "Paris"),
            await play(BROKEN, call("find"), call("search", query="Peru"), "Lima"),
            await play(call("find"), "Paris"),
            await play("I will think about it", turn_tokens=3),
        ]
    )


async def test_every_figure(found):
    assert (found.episodes, found.failed, found.success, found.episodes_with_tools) == (4, 0, 0.5, 4)
    assert found.turns_mean == (2 + 4 + 2 + 1) / 4
    assert found.tool_call_rate == 0.5, "a tool that there is not was not called"
    assert found.parse_error_rate == 3 / 9
    assert found.truncation_rate == 0.25
    assert found.tool_errors == {"search:KeyError": 1}
    assert found.stops == {"done": 3, "turn_cut": 1}
    assert (found.ledger.trained, found.ledger.masked) == (found.ledger.sampled, {})
    assert found.prefix_breaks == 0


async def test_a_prefix_break_is_counted_where_it_is(found):
    trajectory = found.trajectories[0]
    trajectory.tokens[2] += 1
    assert Evaluation.of(found.trajectories).prefix_breaks == 2, "both of its prompts held that token"


def test_no_episodes_at_all():
    found = Evaluation.of([])
    assert (found.episodes, found.parse_error_rate, found.truncation_rate, found.ledger) == (0, 0.0, 0.0, Ledger())
