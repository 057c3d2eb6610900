"""Commands whose episodes are played by workers."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from agentrl import Trajectory

ENV = '''
import asyncio, os
from agentrl import Env, StepResult


class Waiting(Env):
    """The third episode takes for ever while the file `wait` is there."""

    async def step(self, action):
        with open("played", "a") as file:
            file.write(f"{self.task.label} {os.getpid()}\\n")
        while self.task.label == "c" and os.path.exists("wait"):
            await asyncio.sleep(0.05)
        return StepResult(reward=float(self.task.label != "b"), done=True)

    async def close(self):
        with open("closed", "a") as file:
            file.write(f"{self.task.label} {os.getpid()}\\n")


def say(ids):
    return "Hello"
'''
SCRIPTED = ("--engine", "scripted", "--set", "engine_config.turns=waiting.py:say")
EVAL = ("eval", "waiting.py:Waiting", "--data", "abc.jsonl", "--model", "tiny", *SCRIPTED, "--set", "workers=2")


@pytest.fixture
def waiting(folder) -> Path:
    (folder / "waiting.py").write_text(ENV)
    (folder / "abc.jsonl").write_text("".join(json.dumps({"prompt": "Go", "label": one}) + "\n" for one in "abc"))
    return folder


def told(file: Path) -> list[tuple[str, int]]:
    lines = file.read_text().splitlines() if file.exists() else []
    return [(label, int(pid)) for label, pid in map(str.split, lines)]


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.thorough
def test_an_evaluation_in_workers(waiting, agentrl):
    assert agentrl(*EVAL, "--out", "out.jsonl") == 0, agentrl.stderr
    rows = [Trajectory.from_json(json.loads(line)) for line in (waiting / "out.jsonl").read_text().splitlines()]
    assert [(row.task.label, row.reward) for row in rows] == [("a", 1.0), ("b", 0.0), ("c", 1.0)]
    pids = {pid for _, pid in told(waiting / "played")}
    assert len(pids) == 2
    assert os.getpid() not in pids


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_workers_close_their_envs_and_end_with_the_command(waiting, start, number):
    (waiting / "wait").touch()
    process = start(*EVAL)
    end = time.monotonic() + 100
    while len(told(waiting / "played")) < 3:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.05)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143}.get(number, -number)
    pids = {pid for _, pid in told(waiting / "played")}
    while any(map(lives, pids)):
        assert time.monotonic() < end
        time.sleep(0.05)
    assert sorted(label for label, _ in told(waiting / "closed")) == ["a", "b", "c"]


def test_workers_are_for_models_that_run_here(folder, agentrl):
    api = ("--api", "http://127.0.0.1:9/v1", "--model", "m")
    assert agentrl("eval", "my_env.py:Capitals", "--data", "tasks.jsonl", *api, "--set", "workers=2") == 2
    assert "unknown key workers" in agentrl.stderr
    assert agentrl("eval", "my_env.py:Capitals", "--data", "tasks.jsonl", "--model", "tiny", "--set", "workers=-1") == 2
    assert "workers=-1: give a number of processes, 0 or more" in agentrl.stderr
