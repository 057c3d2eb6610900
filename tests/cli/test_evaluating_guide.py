"""docs/evaluating.md: its code and its cheap commands, exactly as they stand there, against the guide's own server."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from agentrl import Task, Trajectory
from agentrl._util.loading import load_object
from agentrl.testing.chat_server import chat_server

GUIDE = (Path(__file__).parents[2] / "docs" / "evaluating.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    (agentrl (?:\\\n|[^\n])+)$", GUIDE, re.MULTILINE)
DEAR = ("runs/first",)
"""What commands need a model for; they are played elsewhere."""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for code in re.findall(r"```python\n(# (\w+\.py)\n.*?)```", GUIDE, re.DOTALL):
        (tmp_path / code[1]).write_text(code[0])
    (tmp_path / "tasks.jsonl").write_text(re.findall(r"```json\n(.*?)```", GUIDE, re.DOTALL)[0])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


@pytest.fixture
def url(folder):
    with chat_server(load_object("my_model.py:reply")) as server:
        yield server.url


@pytest.mark.thorough
def test_the_commands(folder, agentrl, url):
    told = {}
    for command in COMMANDS:
        if not any(dear in command for dear in DEAR):
            args = shlex.split(command.replace("\\\n", " ").replace("http://host/v1", url))[1:]
            name = "yourself" if args[0] == "play" and "--player" not in args else args[0]
            name = "function" if "my_model.py:reply" in args else name
            name = "demonstrations" if "--demonstrations" in args else name
            told[name] = agentrl(*args), agentrl.stdout + agentrl.stderr
    assert {name: code for name, (code, _) in told.items()} == {
        "eval": 0,
        "demonstrations": 0,
        "yourself": 2,
        "function": 0,
    }
    assert "pass@4" in told["eval"][1]
    assert "NAME at 127.0.0.1" in told["eval"][1]
    assert "demos.jsonl: 4 of 8 episodes, of 1 of 2 tasks" in told["demonstrations"][1]
    assert "mean reward  0.500" in told["function"][1]
    assert "needs a terminal" in told["yourself"][1]
    rows = (folder / "results.jsonl").read_text().splitlines()
    assert [Trajectory.from_json(json.loads(row)).reward for row in rows] == [1.0] * 4 + [0.0] * 4


async def test_the_program(folder, url):
    play, env = load_object("ask.py:play"), load_object("capitals.py:Capitals")
    task = Task(prompt="What is the capital of France? One word.", label="Paris")
    assert (await play(env(), task, url)).reward == 1.0
