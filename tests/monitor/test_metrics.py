"""The metrics of a set of episodes: the figures that every run reports."""

from __future__ import annotations

import pytest

from agentrl import Env, Limits, Task, tool
from agentrl.errors import LedgerError
from agentrl.monitor import RolloutMetrics
from agentrl.testing import call, rollout
from agentrl.trajectory.arrays import TokenIds

BROKEN = '<tool_call>\n{"name": "search"'


class Capitals(Env):
    @tool
    async def search(self, query: str) -> str:
        """Search the encyclopedia."""
        return {"France": "Paris"}[query]

    def score(self, trajectory):
        return float(trajectory.answer == "Paris")


@pytest.fixture
async def played(renderer):
    async def play(*turns, **limits):
        given = {"renderer": renderer, "limits": Limits(**limits), "raise_tool_errors": False}
        return await rollout(Capitals(), Task(prompt="?"), turns, **given)

    return [
        [
            await play(call("search", query="France"), "Paris"),
            await play(BROKEN, call("find"), call("search", query="Peru"), "Lima"),
        ],
        [await play(call("find"), "Paris"), await play("I will think about it", max_tokens_per_turn=3)],
    ]


async def test_every_metric(played):
    found = RolloutMetrics.of_groups(played)
    assert (found.episodes, found.failed_episodes, found.reward_mean, found.episodes_with_tools) == (4, 0, 0.5, 4)
    assert (found.groups, found.zero_advantage_groups, found.samples) == (2, 0, 4)
    assert found.turns_mean == (2 + 4 + 2 + 1) / 4
    assert found.tool_call_rate == 0.5, "a tool that there is not was not called"
    assert found.bad_call_rate == 3 / 9
    assert found.truncation_rate == 0.25
    assert found.tool_errors == {"search:KeyError": 1}
    assert found.stops == {"done": 3, "turn_max_tokens": 1}
    assert (found.trained_tokens, found.masked_tokens) == (found.sampled_tokens, {})
    assert found.prefix_breaks == 0


async def test_refused_hosts_are_added_up_and_the_most_common_kept(played):
    for number, trajectory in enumerate(played[0]):
        asked = {f"h{host}.org:443": host for host in range(1, 12)}
        trajectory.info["refused_hosts"] = asked if number else {"h1.org:443": 50}
    found = RolloutMetrics.of_groups(played).refused_hosts
    assert found["h1.org:443"] == 51
    assert len(found) == 10
    assert "h2.org:443" not in found
    played[0][0].info["refused_hosts"] = "rubbish of an Env"
    assert "h1.org:443" not in RolloutMetrics.of_groups(played).refused_hosts


async def test_a_prefix_break_is_counted_where_it_is(played):
    segment = played[0][0].segment
    segment.ids = TokenIds([*segment.ids[:2], segment.ids[2] + 1, *segment.ids[3:]])
    assert RolloutMetrics.of_groups(played).prefix_breaks == 2, "both of its prompts held that token"


async def test_a_token_that_is_neither_trained_nor_masked_is_a_bug(played):
    played[0][0].segment._trained -= 1
    with pytest.raises(LedgerError, match=r"sampled \d+ != trained \d+ \+ masked \{\}"):
        RolloutMetrics.of_groups(played)


def test_no_episodes_at_all():
    found = RolloutMetrics.of_groups([])
    assert found == RolloutMetrics(prefix_breaks=0)
    assert "prefix_breaks" not in RolloutMetrics().to_json(), "nobody has counted them"
