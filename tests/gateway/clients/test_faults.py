"""What networks and servers do to real clients: nothing is sampled twice, nothing is lost, the client goes on or ends.

How each client takes a fault was measured: all ask again, but Claude Code 2.1.197 ends at a cut in a text, and
qwen-code at any. The reply of which they got a part is masked, as nobody acted on it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.doubles.faulty_proxy import Cut, Dropped, Stall, Status
from tests.gateway.clients import said
from tests.gateway.clients.installed import ALL, slow
from tests.gateway.clients.playing import play
from tests.gateway.clients.said import Say, Script
from tests.gateway.clients.starts import starter

pytestmark = pytest.mark.timeout(250)

_STALL_S = 60.0 if ALL else 4.0
_FAULTY = 2
"""The number of the request that meets the fault."""
_CUTS = {
    "claude-code": b"event: content_block_stop",
    "claude-code-2.1.197": b'"text_delta"',
    "codex": b"event: response.output_item.done",
    "qwen-code": b"reasoning",
}
CLIS = ["claude-code", "codex", *(["claude-code-2.1.197", "mini-swe-agent", "qwen-code", "opencode"] if ALL else [])]


def in_order(turns: list[Say]) -> Callable[[int, str], Say]:
    """The turn that a prompt asks for, however often it is asked: a reply that is sampled twice would be seen."""
    return lambda number, prompt: turns[prompt.count("<tool_response>")]


def turns(client: str) -> list[Say]:
    shell = {"codex": said.EXEC, "mini-swe-agent": said.MINI, "qwen-code": said.QWEN, "opencode": said.OPENCODE}
    run = shell.get(client, said.BASH).run
    last = Say("Done.", (run("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"),))
    ends = last if client == "mini-swe-agent" else Say("All done.", (), "\nit is over\n")
    return [Say(f"Step {i}.", (run(f"echo {i}"),), f"\nthought {i}\n") for i in range(1, 4)] + [ends]


def options(client: str) -> list[str]:
    return ["chat"] if client == "opencode" else []


async def played_with(client: str, fault, **more):
    said_turns = turns(client)
    titles = {"opencode": {"title": [Say("A title.")] * 3}}.get(client, {})
    script = Script(in_order(said_turns), openings=titles)
    return said_turns, await play(script, starter(client, *options(client)), faults={_FAULTY: fault}, **more)


@pytest.mark.parametrize(
    "fault",
    [Dropped(), Status(529), Status(503), Stall(_STALL_S), Cut(b"")],
    ids=["dropped", "529", "503", "stall", "headers"],
)
@pytest.mark.parametrize("client", [client for client in CLIS if client != "opencode"])
async def test_asks_again(client, fault):
    """The faults after which each client goes on: one sample, and each turn sampled once."""
    if client == "mini-swe-agent" and isinstance(fault, Cut):
        pytest.skip("it does not stream")
    if client == "qwen-code" and isinstance(fault, Cut):
        pytest.skip("it ends at any cut")
    if client == "claude-code" and isinstance(fault, Status | Dropped) and fault != Status(529):
        slow()
    said_turns, played = await played_with(client, fault)
    assert len(played.engine.calls) == len(said_turns)
    assert len(played.trajectory.segments) == 1
    assert len(played.proxy.seen) == len(said_turns) + (0 if isinstance(fault, Stall) else 1)
    if not isinstance(fault, Stall):
        again = played.proxy.seen[_FAULTY - 1 : _FAULTY + 1]
        told = [{**json.loads(seen.body), "client_metadata": None} for seen in again]  # Codex notes there what it does
        assert told[0] == told[1]


@pytest.mark.parametrize("client", [client for client in CLIS if client in _CUTS])
async def test_cut_in_the_answer(client):
    """The connection is reset when a part of the answer was read: its thoughts, or its first event."""
    ends = client in ("claude-code-2.1.197", "qwen-code")
    said_turns, played = await played_with(client, Cut(_CUTS[client]), fails=ends, unclaimed=int(ends))
    if ends:
        assert (len(played.engine.calls), played.ended[0].exit_code) == (_FAULTY, 1)
    else:
        assert len(played.engine.calls) == len(said_turns)
    assert len(played.trajectory.segments) == 1
    again = played.proxy.seen[_FAULTY - 1 : _FAULTY + 1]
    if client == "codex":  # it asks for the rest: the thoughts that it has read stand in the request
        assert b"thought 2" not in again[0].body
        assert b"thought 2" in again[1].body


@pytest.mark.parametrize("client", [client for client in CLIS if client != "opencode"])
async def test_wrong_key(client):
    """A wrong key is refused with 400, and the client ends."""

    def start(endpoint):
        return starter(client, *options(client))(replace(endpoint, key="sk-of-nobody"))

    began = time.monotonic()
    played = await play(Script(turns(client)), start, fails=True)
    assert time.monotonic() - began < (15 if client != "mini-swe-agent" else 60)  # mini-swe-agent asks three times
    assert played.engine.calls == []
    assert {seen.status for seen in played.proxy.seen} <= {400}


@pytest.mark.parametrize("wire", ["responses", *(["chat"] if ALL else [])])
async def test_library_asks_again(wire):
    """OpenAI's own client asks again after a drop, a 503 and a 529; each turn is sampled once."""
    calls = [Say(f"Step {i}.", (said.SEARCH.run(f"{i}"),), f"\nthought {i}\n") for i in range(1, 4)]
    faults = {2: Dropped(), 4: Status(503), 6: Status(529)}
    played = await play(
        Script(in_order([*calls, Say("All done.")])), starter("openai-agents", wire, "whole"), faults=faults
    )
    assert (len(played.engine.calls), len(played.trajectory.segments)) == (4, 1)
    assert len(played.proxy.seen) == 7


async def test_opencode_goes_on():
    slow()
    for fault in (Dropped(), Status(529), Stall(_STALL_S)):
        said_turns, played = await played_with("opencode", fault)
        assert len(played.engine.calls) == len(said_turns) + 1  # the title
        assert len(played.trajectory.segments) == 2
