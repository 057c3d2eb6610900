"""Sessions of several lines: summaries, sub-agents, tools that are loaded later, a second process, several replies.

The expected numbers are those of the survey of clients, in which each client's requests were read by hand. That a reply
which a client carries into another line is trained once is among the checks of every session.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from agentrl_envs.agents.start import Start
from tests.gateway.clients import said
from tests.gateway.clients.installed import ALL, path_of
from tests.gateway.clients.playing import play
from tests.gateway.clients.said import Say, Script
from tests.gateway.clients.starts import starter

pytestmark = pytest.mark.timeout(150)

CLAUDES = ["claude-code", *(["claude-code-2.1.197"] if ALL else [])]
SUMMARY = "<analysis>What was done.</analysis>\n<summary>\nFour steps were taken. Next: report.\n</summary>"
DONE = Say("All done.", (), "\nit is over\n")
_LARGE, _MIDDLE = "seq 10000 14900", "seq 10000 11200"
"""Commands with some 30,000 and 7,000 tokens of output."""


def step(shell, command: str) -> Say:
    return Say("A step.", (shell.run(command),), f"\nnow {command}\n")


async def first_prompt(client: str) -> int:
    """Tokens of a session's first request."""
    played = await play(Script([DONE]), starter(client))
    return len(played.engine.calls[0][0])


@pytest.mark.parametrize("client", CLAUDES)
async def test_compacts_when_the_context_is_full(client):
    """Refused in the API's words, Claude Code asks for a summary and goes on: before, the summary, after."""
    room = await first_prompt(client) + 50_000
    steps = [step(said.BASH, _LARGE), *[step(said.BASH, f"{_MIDDLE}; echo {i}") for i in range(4)]]
    script = Script([*steps, DONE], endings={"summary of the conversation": [Say(SUMMARY)]})
    played = await play(script, starter(client), context_length=room)
    assert [seen.status for seen in played.proxy.seen].count(400) == 1
    assert "All done." in played.output
    assert len(played.trajectory.segments) == 3
    assert "Four steps were taken" in played.texts[-1]  # the main line went on behind the summary


async def test_codex_compacts_by_the_usage_that_it_is_told():
    room = await first_prompt("codex") + 15_000
    script = Script(
        [*[step(said.EXEC, f"{_MIDDLE}; echo {i}") for i in range(3)], DONE],
        endings={"CONTEXT CHECKPOINT COMPACTION": [Say(SUMMARY)]},
    )
    played = await play(script, _codex_with(room))
    assert script.played.count("CONTEXT CHECKPOINT COMPACTION") == 1
    assert len(played.trajectory.segments) == 3


def _codex_with(room: int):
    start = starter("codex")

    def started(endpoint):
        made = start(endpoint)
        return Start([made.argv[0], "-c", f"model_auto_compact_token_limit={room}", *made.argv[1:]], made.env)

    return started


def _sub(mark: str) -> list[Say]:
    return [Say("Looking.", (said.BASH.run(f"echo {mark}"),)), Say(f"Result of {mark}.")]


@pytest.mark.parametrize("client", CLAUDES)
async def test_two_sub_agents_of_claude_code(client):
    """Two in one reply: the parent's line and one of each."""

    def delegate(mark):
        given = {"description": mark, "prompt": f"{mark}: look", "subagent_type": "general-purpose"}
        return "Agent", json.dumps(given)

    parent = [Say("Delegating.", (delegate("SUBTASK-A"), delegate("SUBTASK-B"))), *[DONE] * 6]
    script = Script(parent, openings={mark: _sub(mark) for mark in ("SUBTASK-A", "SUBTASK-B")})
    played = await play(script, starter(client))
    assert [script.played.count(mark) for mark in script.openings] == [2, 2]
    assert len(played.trajectory.segments) == 3
    assert "Delegating" in played.texts[-1]


async def test_two_sub_agents_of_codex():
    """Beside their parent, whose tools for them stand in a namespace; it waits for one after the other.

    Codex goes on as soon as any agent that it waits for is done, and at its own end it ends the others.
    """

    def parent(number, prompt):
        if number == 1:
            agents = [("spawn_agent", json.dumps({"message": f"SUBTASK-{mark}: look"})) for mark in "AB"]
            return Say("Delegating.", tuple(agents))
        if number in (2, 3):
            ids = re.findall(r'"agent_id": ?"([0-9a-f-]{36})"', prompt.replace("\\", ""))
            mine = list(dict.fromkeys(ids))[number - 2 : number - 1]
            return Say("Waiting.", (("wait_agent", json.dumps({"targets": mine, "timeout_ms": 60_000})),))
        return DONE

    own = {mark: [Say("Looking.", (said.EXEC.run("echo x"),)), Say("Found.")] for mark in ("SUBTASK-A", "SUBTASK-B")}
    script = Script(parent, openings=own)
    played = await play(script, starter("codex"))
    assert [script.played.count(mark) for mark in own] == [2, 2]
    assert len(played.trajectory.segments) == 3
    assert "Delegating" in played.texts[-1]


async def test_a_tool_that_is_loaded_later():
    """Claude Code shows most tools by name only. `ToolSearch` loads one, and the prompt before it stays as it is."""
    find = ("ToolSearch", json.dumps({"query": "select:WebFetch", "max_results": 3}))
    script = Script([Say("", (find,)), step(said.BASH, "echo hi"), DONE])
    played = await play(script, starter("claude-code"))
    assert (len(played.engine.calls), len(played.trajectory.segments)) == (3, 1)
    (first, _), (second, _), _ = played.engine.calls
    assert second[: len(first)] == first
    read = played.engine.read
    assert '"url"' in read(second[len(first) :])  # the schema of what was loaded
    assert '"name": "WebFetch"' not in read(first)


@pytest.mark.parametrize("client", [*CLAUDES, "codex"])
async def test_goes_on_in_a_second_process(client):
    again = ("resume", "--last") if client == "codex" else ("--continue",)
    shell = said.EXEC if client == "codex" else said.BASH
    script = Script([step(shell, "echo one"), Say("The first is done."), Say("The second is done.")])
    played = await play(script, starter(client), starter(client, *again, prompt="And now the second."))
    assert (len(played.engine.calls), len(played.trajectory.segments)) == (3, 1)


async def test_several_replies_to_one_question():
    """`n` of 3, and on behind the second: three lines with one prompt."""
    turns = [Say(f"Choice {i}.", (said.SEARCH.run(f"{i}"),)) for i in range(3)]
    program = str(Path(__file__).parent / "programs" / "with_openai.py")
    path = path_of("openai-agents")
    played = await play(Script([*turns, DONE]), lambda endpoint: Start([path, program, "three"], endpoint.variables()))
    assert played.output.split()[0] == "3"
    assert "All done." in played.output
    assert (len(played.engine.calls), len(played.trajectory.segments)) == (4, 3)
    lengths = sorted(len(segment.turns) for segment in played.trajectory.segments)
    assert lengths == [1, 1, 2]
