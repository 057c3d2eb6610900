"""Functions of messages and tools play agents: they are shown each conversation from its first prompt on."""

from __future__ import annotations

import asyncio
import json

import pytest
from typer.testing import CliRunner

from agentrl import AgentEnv, Endpoint, Limits, StopReason, Task, Trajectory
from agentrl.cli import app
from agentrl.testing import call, rollout
from tests.gateway.acting import TOOL
from tests.gateway.agents import ask

TEAM = """
import asyncio
import json

from agentrl import AgentEnv
from tests.gateway.test_players_of_agents import Team, by_role

__all__ = ["Team", "by_role"]
"""


class Team(AgentEnv):
    """Two solvers at once, one of them with a tool, and a selector that reads both."""

    async def run(self, task: Task, endpoint: Endpoint) -> str:
        async def solve(role: str, **fields):
            line = [{"role": "system", "content": role}, {"role": "user", "content": task.prompt}]
            while True:
                reply = await ask(endpoint, line, **fields)
                line.append(reply)
                if not reply.get("tool_calls"):
                    return reply["content"]
                for tool_call in reply["tool_calls"]:
                    city = json.loads(tool_call["function"]["arguments"])["what"]
                    line.append({"role": "tool", "tool_call_id": tool_call["id"], "content": f"{city} is in France"})

        solved = await asyncio.gather(solve("You look it up.", tools=[TOOL]), solve("You guess."))
        lines = [{"role": "system", "content": "You select."}, {"role": "user", "content": "\n".join(solved)}]
        return (await ask(endpoint, lines))["content"]

    def score(self, trajectory: Trajectory) -> float:
        return float(trajectory.answer == self.result == "Paris")


def by_role(messages, tools):
    """Plays each member of the team by its instructions."""
    role, question = messages[0]["content"], messages[-1]["content"]
    assert [message["role"] for message in messages[:2]] == ["system", "user"]
    if role == "You look it up.":
        assert [tool["function"]["name"] for tool in tools] == ["find"]
        return call("find", what="Paris") if len(messages) == 2 else f"I read: {question}"
    assert not tools
    return "Rome" if role == "You guess." else "Paris"


async def later(messages, tools):
    await asyncio.sleep(0)
    return by_role(messages, tools)


@pytest.mark.parametrize("player", [by_role, later])
async def test_a_function_tells_the_conversations_of_a_team_apart(player):
    played = await rollout(Team(), Task(prompt="Which city?"), player)
    assert (played.reward, played.stop, played.answer) == (1.0, StopReason.DONE, "Paris")
    assert sorted(action.content for action in played.said) == ["", "I read: Paris is in France", "Paris", "Rome"]
    assert sum(segment.ledger.trained for segment in played.segments) > 0
    played.verify()


async def test_its_long_reply_is_cut_at_the_limit():
    limits = Limits(turns=16, tokens=8)
    played = await rollout(Team(), Task(prompt="Which city?"), lambda messages, tools: "one word " * 50, limits=limits)
    assert (played.failure, played.reward) == (None, 0.0)
    assert {turn.sampled_tokens for turn in played.turns} == {8}


class Demands(AgentEnv):
    async def run(self, task: Task, endpoint: Endpoint) -> None:
        lines = [{"role": "user", "content": task.prompt}]
        reply = await ask(endpoint, lines, tools=[TOOL], tool_choice="required")
        assert reply["tool_calls"][0]["function"]["name"] == "find"


async def test_it_plays_an_agent_that_demands_a_call():
    task = Task(prompt="Which city?")
    played = await rollout(Demands(), task, lambda messages, tools: call("find", what="Paris"))
    assert (played.failure, played.stop, played.turn_count) == (None, StopReason.DONE, 1)
    played = await rollout(Demands(), task, lambda messages, tools: "Paris")
    assert "the reply has no call" in str(played.failure)


async def test_a_generator_that_plays_two_conversations_is_told_of_functions():
    def player():
        yield "I read nothing."
        yield "Rome"

    with pytest.raises(AssertionError, match="use a function of messages and tools"):
        await rollout(Team(), Task(prompt="Which city?"), player())


@pytest.mark.thorough
def test_play_writes_demonstrations_of_a_team(tmp_path, monkeypatch):
    (tmp_path / "team.py").write_text(TEAM)
    (tmp_path / "tasks.jsonl").write_text('{"id": "a", "prompt": "Which city?"}\n{"id": "b", "prompt": "And now?"}\n')
    env, out = f"{tmp_path}/team.py:Team", tmp_path / "demos.jsonl"
    result = CliRunner().invoke(
        app,
        [
            "play",
            env,
            "--player",
            f"{tmp_path}/team.py:by_role",
            "--data",
            f"{tmp_path}/tasks.jsonl",
            "--out",
            str(out),
        ],
    )
    assert result.exit_code == 0, result.output
    played = [Trajectory.from_json(json.loads(line)) for line in out.read_text().splitlines()]
    assert [t.reward for t in played] == [1.0, 1.0]
    assert all(
        sum(segment.ledger.trained for segment in t.segments) == sum(turn.sampled_tokens for turn in t.turns)
        for t in played
    )
