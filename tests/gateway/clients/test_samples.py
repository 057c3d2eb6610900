"""A session of nine odd turns is one sample, or as many as the client itself begins anew.

The expected numbers are those of the survey of clients, in which each client's requests were read by hand.
"""

from __future__ import annotations

import pytest

from tests.gateway.clients import said
from tests.gateway.clients.installed import ALL
from tests.gateway.clients.playing import play
from tests.gateway.clients.said import Say, Script
from tests.gateway.clients.starts import starter

pytestmark = pytest.mark.timeout(150)

DONE = Say("All done: 42. ", (), " a last thought ")
SUBMIT = Say("Done.", (("bash", '{"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"}'),))


@pytest.mark.parametrize(
    "client", ["claude-code", "codex", *(["claude-code-2.1.197", "mini-swe-agent", "qwen-code"] if ALL else [])]
)
async def test_cli(client):
    turns, segments = {
        "claude-code": (said.odd(said.BASH), 1),
        "claude-code-2.1.197": (said.odd(said.BASH), 1),
        "codex": (said.odd(said.EXEC), 1),
        "mini-swe-agent": (said.odd(said.MINI, more=[Say("No call.")], last=SUBMIT), 3),  # two replies are dropped
        "qwen-code": (said.odd(said.QWEN, last=DONE), 1),
    }[client]
    played = await play(Script(turns), starter(client))
    assert len(played.engine.calls) == len(turns)
    assert len(played.trajectory.segments) == segments
    if client.startswith("claude"):
        assert "echo broken" in played.output  # a call that cannot be read reaches the client as text


LIBRARIES = [
    ("openai-agents", "responses", "stream"),
    ("langgraph", "messages", "stream"),
    ("strands-agents", "chat", "stream"),
]
MORE = [
    ("openai-agents", "chat", "whole"),
    ("langgraph", "responses", "whole"),
    ("langgraph", "chat", "whole"),
    ("strands-agents", "messages", "stream"),
    ("strands-agents", "responses", "stream"),
]


@pytest.mark.parametrize(("client", "wire", "how"), LIBRARIES + (MORE if ALL else []))
async def test_library(client, wire, how):
    turns = said.odd(said.SEARCH, unknown=client != "openai-agents", last=DONE)
    played = await play(Script(turns), starter(client, wire, how))
    assert "42" in played.output
    assert (len(played.engine.calls), len(played.trajectory.segments)) == (len(turns), 1)
