"""A session of nine odd turns is one sample, or as many as the client itself begins anew.

The expected numbers are those of the survey of clients, in which each client's requests were read by hand.
"""

from __future__ import annotations

import json
import re

import pytest

from agentrl.chat.options import SessionOptions
from tests.gateway.clients import said
from tests.gateway.clients.installed import ALL, slow
from tests.gateway.clients.playing import play
from tests.gateway.clients.said import Say, Script
from tests.gateway.clients.starts import starter

pytestmark = pytest.mark.timeout(150)

DONE = Say("All done: 42. ", (), " a last thought ")
SUBMIT = Say("Done.", (("bash", '{"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"}'),))


@pytest.mark.parametrize(
    "client",
    ["claude-code", "codex", "gemini-cli", *(["claude-code-2.1.197", "mini-swe-agent", "qwen-code"] if ALL else [])],
)
async def test_cli(client):
    turns, segments = {
        "claude-code": (said.odd(said.BASH), 1),
        "claude-code-2.1.197": (said.odd(said.BASH), 1),
        "codex": (said.odd(said.EXEC), 1),
        "mini-swe-agent": (said.odd(said.MINI, more=[Say("No call.")], last=SUBMIT), 3),  # two replies are dropped
        "qwen-code": (said.odd(said.QWEN, last=DONE), 1),
        "gemini-cli": (said.odd(said.GEMINI, last=DONE), 1),
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
    ("pydantic-ai", "chat", "whole"),
    ("pydantic-ai", "responses", "whole"),
    ("pydantic-ai", "messages", "whole"),
]


@pytest.mark.parametrize(("client", "wire", "how"), LIBRARIES + (MORE if ALL else []))
async def test_library(client, wire, how):
    turns = said.odd(said.SEARCH, unknown=client != "openai-agents", last=DONE)
    played = await play(Script(turns), starter(client, wire, how))
    assert "42" in played.output
    assert (len(played.engine.calls), len(played.trajectory.segments)) == (len(turns), 1)


@pytest.mark.parametrize("how", ["stream", "whole"])
async def test_google_genai(how):
    """It calls its tool by itself, and counts tokens first."""
    turns = said.odd(said.SEARCH, unknown=False, last=DONE)
    played = await play(Script(turns), starter("google-genai", how))
    assert "42" in played.output
    assert (len(played.engine.calls), len(played.trajectory.segments)) == (len(turns), 1)


@pytest.mark.parametrize("client", ["gemini-cli", "google-genai"])
async def test_a_slow_model_of_googles_clients(client):
    """While the engine runs, a stream holds events without content."""
    shell, options = (said.GEMINI, ()) if client == "gemini-cli" else (said.SEARCH, ("stream",))
    script = Script([Say("One.", (shell.run("echo one"),)), DONE])
    played = await play(script, starter(client, *options), delay=lambda number: 5.0)
    assert "42" in played.output
    assert (len(played.engine.calls), len(played.trajectory.segments)) == (2, 1)


@pytest.mark.parametrize("wire", ["chat", "responses", "messages"])
async def test_opencode(wire):
    """It asks for a title first, which is a line of its own."""
    slow()
    turns = said.odd(said.OPENCODE, last=DONE)
    script = Script(turns, openings={"title": [Say("A title.")]})
    played = await play(script, starter("opencode", wire))
    assert (len(played.engine.calls), len(played.trajectory.segments)) == (len(turns) + 1, 2)
    assert "told_in_another_meaning" in played.audits()  # a call of an unknown tool comes back as `invalid`


async def test_defaults_that_a_client_fills_in():
    """Claude Code tells its `Edit` with the keys in the schema's order and a default more."""

    def turns(number, prompt):
        folder = re.search(r"working directory: (\S+)", prompt)[1]
        edit = {"new_string": "a = 2", "old_string": "a = 1", "file_path": f"{folder}/f.py"}
        calls = [
            said.BASH.run("echo 'a = 1' > f.py"),
            ("Read", json.dumps({"file_path": f"{folder}/f.py"})),
            ("Edit", json.dumps(edit)),
            ("Bash", "{}"),
        ]
        return Say(f"Step {number}.", (calls[number - 1],)) if number <= len(calls) else DONE

    played = await play(Script(turns), starter("claude-code"))
    assert (len(played.engine.calls), len(played.trajectory.segments)) == (5, 1)
    assert b"replace_all" in played.proxy.seen[-1].body.partition(b"Step 3.")[2]
    assert played.audits() == ["told_in_another_spelling"]
    assert "replace_all" not in played.texts[0].partition("Step 3.")[2]  # the tokens are those that were sampled


@pytest.mark.parametrize("client", ["claude-code", "codex", *(["mini-swe-agent"] if ALL else [])])
async def test_a_call_that_cannot_be_read_ends_no_command_line(client):
    """It is answered by the client, and the model reads that. As text, it would be the final answer."""
    shell, last = {
        "claude-code": (said.BASH, DONE),
        "codex": (said.EXEC, DONE),
        "mini-swe-agent": (said.MINI, SUBMIT),
    }[client]
    broken = Say("Broken.", ((shell.name, f'{{"{shell.key}": "echo broken", oops'),))
    script = Script([Say("First.", (shell.run("echo one"),)), broken, last])
    played = await play(script, starter(client), options=SessionOptions(unreadable="call"))
    assert len(played.engine.calls) == 3
    assert played.audits().count("unreadable_call") == 1
    assert not re.search(r"^broken$", played.texts[-1], re.MULTILINE), "it was not executed"


PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


@pytest.mark.parametrize("client", ["claude-code", "codex"])
async def test_an_image_ends_no_session(client):
    """Claude Code reads one, and Codex looks at one. It stays in the history, so each request after it has it, too."""
    shell = said.BASH if client == "claude-code" else said.EXEC

    def turns(number, prompt):
        if number == 1:
            return Say("", (shell.run(f"echo {PIXEL} | base64 -d > dot.png; echo in $PWD."),))
        if number > 3:
            return DONE
        path = f"{re.findall(r'^in (/.*)[.]$', prompt, re.MULTILINE)[-1]}/dot.png"
        call = ("Read", {"file_path": path}) if client == "claude-code" else ("view_image", {"path": path})
        return Say(f"Look {number}.", ((call[0], json.dumps(call[1])),))

    played = await play(Script(turns), starter(client), options=SessionOptions(images="omit"))
    assert (len(played.engine.calls), len(played.trajectory.segments)) == (4, 1)
    assert played.texts[0].count("[image omitted: this model reads text only]") == 2
    asked = [line["asked"].get("images_omitted", 0) for line in played.session.log.lines if line["event"] == "request"]
    assert asked == [0, 0, 1, 2]


CITY = '{"name": "Paris"}'
FINAL = Say("", (("final_result", CITY),))
_HELD = [
    ("langgraph", ("chat", "output"), [Say(CITY)], "json_schema"),
    ("langgraph", ("responses", "output"), [Say(CITY)], "json_schema"),
    ("google-genai", ("output",), [Say(CITY)], "json_schema"),
    ("smolagents", ("tools", "whole"), [Say("", (said.SEARCH.run("a"),)), Say("", (said.SEARCH.run("b"),))], "calls"),
    *(
        [
            ("langgraph", ("messages", "output"), [Say("", (("City", CITY),))], "calls"),
            *(
                ("pydantic-ai", (wire, "output"), [Say("", (said.SEARCH.run("it"),)), FINAL], "calls")
                for wire in ("chat", "responses", "messages")
            ),
        ]
        if ALL
        else []
    ),
]


@pytest.mark.parametrize(("client", "options", "turns", "kind"), _HELD)
async def test_what_a_library_forces_is_sampled_under_a_grammar(client, options, turns, kind):
    """Each request has one, and what the script says obeys it: the session would refuse anything else."""
    last = [Say("", (("final_answer", '{"answer": "Paris"}'),))] if client == "smolagents" else []
    played = await play(Script([*turns, *last]), starter(client, *options))
    assert "Paris" in played.output
    grammars = [json.loads(params["structural_tag"]) for params in played.engine.params]
    assert len(grammars) == len(turns) + len(last)
    assert all(('"star"' in json.dumps(one)) == (kind == "calls") for one in grammars)
    assert [line for line in played.session.log.lines if line["event"] == "refused"] == []
    assert len(played.trajectory.segments) == 1


FORCED = [("langgraph", "chat", Say(CITY), "json_schema"), ("langgraph", "responses", Say(CITY), "json_schema")]
MORE_FORCED = [
    ("langgraph", "messages", Say("", (("City", CITY),)), "City"),
    *(("pydantic-ai", wire, FINAL, "") for wire in ("chat", "responses", "messages")),
    ("smolagents", "tools", Say("", (("final_answer", '{"answer": "Paris"}'),)), "required"),
]


@pytest.mark.parametrize(("client", "wire", "answer", "forced"), FORCED + (MORE_FORCED if ALL else []))
async def test_what_a_library_forces_can_be_ignored(client, wire, answer, forced):
    first = [] if client == "langgraph" else [Say("", (said.SEARCH.run("it"),))]
    script, ignore = Script([*first, answer]), SessionOptions(forced="ignore")
    played = await play(script, starter(client, wire, "output"), options=ignore)
    assert "Paris" in played.output
    requests = [line for line in played.session.log.lines if line["event"] == "request"]
    assert len(requests) == len(first) + 1
    assert all(forced in json.dumps(line["asked"]["forced_ignored"]) for line in requests)
    assert [line for line in played.session.log.lines if line["event"] == "refused"] == []
