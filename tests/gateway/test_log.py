"""What is kept of a session: in the trajectory, in its file, and as `agentrl show` prints it."""

from __future__ import annotations

import io
import json
import os

import pytest
from rich.console import Console

from agentrl import Trajectory
from agentrl.chat.options import SessionOptions
from agentrl.cli.show import load_trajectory, render_trajectory
from agentrl.gateway.session.log import SessionLog
from agentrl.gateway.session.session import Session
from agentrl.testing import call
from agentrl.trajectory.trajectory import total_ledger
from tests.gateway.client import ASK, SYSTEM, Call, Entry, Talk, replace, results, told


async def played(renderer) -> Talk:
    """A session with all there is: tools, a dropped reply, a side line, a summary, a lost reply, other spellings."""
    left = [
        call("find", what="France"),
        "dropped",
        "Paris",
        "A title",
        "It is Paris, in short: a summary of it all.",
        "lost",
        "Bye.",
    ]
    talk = Talk(renderer, lambda ids: left.pop(0), options=SessionOptions(dropped="mask", side="mask"))
    one = await talk.says(SYSTEM, ASK)
    line = [SYSTEM, ASK, replace(told(one), calls=(Call(one.calls[0].id, "find", {"what": "France", "deep": 1}),))]
    line += results(one, "\x1b[31mIt is Paris.")
    await talk.says(*line)
    two = await talk.says(*line)
    await talk.says(Entry("system", "Titles."), ASK, tools=(), branch="thread-9")
    summary = await talk.says(*line, told(two), Entry("user", "Summarise."))
    lost = talk.ask(*line, told(two), Entry("user", "And?"))
    await talk.replies(lost)
    lost.lost()
    await talk.says(SYSTEM, Entry("user", f"So far: {summary.content}"), told(two), Entry("user", "Go on."))
    return talk


async def test_the_file_of_a_session_makes_it_again(renderer, tmp_path, monkeypatch):
    monkeypatch.setenv("AGENTRL_SESSION_LOGS", str(tmp_path / "logs"))
    talk = await played(renderer)
    file = tmp_path / "logs" / "s.jsonl"
    lines = file.read_text().split("\n")
    t = talk.end()
    again = Trajectory()
    Session.replay([*lines, '{"at": 1, "eve']).write(again)
    assert [s.to_json() for s in again.segments] == [s.to_json() for s in t.segments]
    assert (again.messages, again.tools) == (t.messages, t.tools)
    assert again.session["nodes"] == t.session["nodes"]
    assert again.info["agent"] == t.info["agent"]
    shown = load_trajectory(file)
    assert total_ledger(shown.segments) == total_ledger(t.segments)


async def test_no_file_is_written_unless_it_is_asked_for(renderer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    await played(renderer)
    assert os.listdir(tmp_path) == []


async def test_everything_stands_in_the_trajectory(renderer):
    talk = await played(renderer)
    t = Trajectory.from_json(json.loads(json.dumps(talk.end().to_json())))
    nodes = t.session["nodes"]
    assert [node["parent"] for node in nodes] == [None, 0, 0, None, 2, 2, None]
    assert [node["masked"] for node in nodes] == [None, "dropped", None, "side", None, "undelivered", None]
    assert nodes[6]["known"] == [2]
    assert sum(node["sampled_tokens"] for node in nodes) == total_ledger(t.segments).sampled
    for node in nodes:
        segment = t.segments[node["segment"]]
        assert segment.turns, node
    assert [audit["kind"] for audit in t.session["audits"]] == ["told_in_another_spelling"]
    assert sum(line["event"] == "request" for line in t.session["requests"]) == 7
    assert t.info["agent"] == {
        "replies": 7,
        "requests": 7,
        "segments": 5,
        "roots": 3,
        "dropped": 1,
        "undelivered": 1,
        "replayed": 0,
        "refused": 0,
        "audits": 1,
    }


async def test_show_prints_a_session_as_a_tree(renderer):
    talk = await played(renderer)
    out = io.StringIO()
    Console(file=out, width=150).print(render_trajectory(talk.end(), renderer.decode))
    lines = out.getvalue().split("\n")
    heads = [line.partition(" tokens")[0] for line in lines if "#" in line and " tokens" in line]
    assert [head.partition(":")[0] for head in heads] == [
        "- #0 earlier",
        "  - #1 dropped",
        "  #2 earlier",
        "  - #5 earlier",
        "  #4 earlier",
        "- #3 side thread-9",
        "- #6 main",
    ]
    assert "masked undelivered" in next(line for line in lines if "#5" in line)
    assert "repeats #2" in next(line for line in lines if "#6" in line)
    audit = next(line for line in lines if "sent back in another spelling" in line)
    assert "stored 'find({" in audit
    assert '"deep":1' in audit
    assert "\x1b" not in out.getvalue()


def test_what_is_no_log_of_a_session(tmp_path):
    with pytest.raises((ValueError, KeyError, StopIteration)):
        Session.replay(['{"event": "request"}'])


def test_a_file_holds_prompts_of_any_length_and_names_of_any_kind(tmp_path, monkeypatch):
    monkeypatch.setenv("AGENTRL_SESSION_LOGS", str(tmp_path))
    log = SessionLog()
    log.note("prompt", lambda: {"tokens": [*range(150_000)], "text": "half a \ud83d"})
    log.name("group/1")
    line = json.loads((tmp_path / "group_1.jsonl").read_text())
    assert (len(line["tokens"]), line["text"]) == (150_000, "half a \ud83d")


def test_a_disk_that_takes_no_more_ends_the_file_and_not_the_session(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("AGENTRL_SESSION_LOGS", str(tmp_path / "file"))
    log = SessionLog()
    log.name("s")
    log.note("play")
    log.note("hold")
    assert [line["event"] for line in log.lines] == ["play", "hold"]
    assert caplog.text.count("the session's log ends here") == 1
