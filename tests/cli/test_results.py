"""What commands leave where they are killed, and what they find where they begin."""

from __future__ import annotations

import json
import os
import signal
import stat
import time
from pathlib import Path

import pytest

from agentrl import Trajectory
from agentrl._util.files import only_writer

WAITING = '''
import asyncio, os
from agentrl import Env, StepResult


class Waiting(Env):
    """The third episode takes for ever while the file `wait` is there."""

    async def step(self, action):
        with open("played", "a") as file:
            file.write(self.task.label)
        while self.task.label == "c" and os.path.exists("wait"):
            await asyncio.sleep(0.05)
        return StepResult(reward=float(self.task.label != "b"), done=True)


def player(task):
    yield "Hello"


def say(ids):
    return "Hello"
'''
DATA = ("waiting.py:Waiting", "--data", "abc.jsonl")
SCRIPTED = ("--engine", "scripted", "--set", "engine_config.turns=waiting.py:say")
COMMANDS = {
    "play": ("play", *DATA, "--player", "waiting.py:player", "--out", "out.jsonl"),
    "eval": ("eval", *DATA, "--model", "tiny", *SCRIPTED, "--out", "out.jsonl"),
}


@pytest.fixture
def waiting(folder) -> Path:
    (folder / "waiting.py").write_text(WAITING)
    (folder / "abc.jsonl").write_text("".join(json.dumps({"prompt": "Go", "label": one}) + "\n" for one in "abc"))
    return folder


def rows(file: Path) -> list[Trajectory]:
    return [Trajectory.from_json(json.loads(line)) for line in file.read_text().splitlines()]


def stopped(start, folder: Path, command: tuple[str, ...], number: int) -> tuple[int, str]:
    """Send a signal to a command that has finished two episodes of three. Its exit code, and what it says."""
    (folder / "wait").touch()
    process = start(*command)
    file, end = folder / "out.jsonl.unfinished", time.monotonic() + 60
    while not (file.exists() and file.read_text().count("\n") == 2):
        if process.poll() is not None or time.monotonic() > end:
            process.kill()
            raise AssertionError(process.communicate())
        time.sleep(0.05)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=60)
    (folder / "wait").unlink()
    return process.returncode, stderr


@pytest.mark.thorough
@pytest.mark.parametrize("command", COMMANDS)
def test_a_kill_loses_no_finished_episode(waiting, agentrl, start, command):
    stopped(start, waiting, COMMANDS[command], signal.SIGKILL)
    assert not (waiting / "out.jsonl").exists(), "what is there is whole"
    assert agentrl(*COMMANDS[command]) == 0, agentrl.stderr
    assert "out.jsonl.unfinished: 2 finished" in agentrl.stderr
    assert sorted((waiting / "played").read_text()) == ["a", "b", "c", "c"]
    assert [(t.task.label, t.reward) for t in rows(waiting / "out.jsonl")] == [("a", 1.0), ("b", 0.0), ("c", 1.0)]
    assert sorted(path.name for path in waiting.glob("*out*")) == ["out.jsonl"]


@pytest.mark.thorough
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("change", ["settings", "code"])
def test_what_another_command_left_is_replaced_and_said(waiting, agentrl, start, command, change):
    stopped(start, waiting, COMMANDS[command], signal.SIGKILL)
    if change == "code":
        (waiting / "waiting.py").write_text(WAITING.replace('!= "b"', '!= "c"'))
    more = ("--set", "limits.turns=3") if change == "settings" else ()
    assert agentrl(*COMMANDS[command], *more) == 0, agentrl.stderr
    said = "warning: out.jsonl.unfinished was left by another command and is replaced: it holds results of "
    assert said in agentrl.stderr
    assert sorted((waiting / "played").read_text()) == [*"aabbcc"]
    rewards = [1.0, 1.0, 0.0] if change == "code" else [1.0, 0.0, 1.0]
    assert [t.reward for t in rows(waiting / "out.jsonl")] == rewards


@pytest.mark.parametrize("command", COMMANDS)
def test_what_was_paid_for_is_not_replaced(waiting, agentrl, command):
    row = Trajectory(session_id="s")
    row.info["played"] = {"task": "t", "sample": 0, "env": "waiting.py:Waiting", "api": "http://host/v1"}
    (waiting / "out.jsonl.unfinished").write_text(json.dumps(row.to_json()) + "\n")
    assert agentrl(*COMMANDS[command]) == 2
    assert agentrl.stderr.startswith("error: --out out.jsonl.unfinished holds results of ")
    assert len(rows(waiting / "out.jsonl.unfinished")) == 1


@pytest.mark.parametrize("command", COMMANDS)
def test_two_commands_with_one_file_are_one_too_many(waiting, agentrl, command):
    with only_writer(waiting / "out.jsonl"):
        assert agentrl(*COMMANDS[command]) == 2
        assert agentrl.stderr == (
            "error: out.jsonl: another command is writing to it; wait for its end, or name another\n"
        )
        assert not (waiting / "played").exists()
    assert agentrl(*COMMANDS[command]) == 0


@pytest.mark.thorough
@pytest.mark.parametrize("command", COMMANDS)
def test_an_interrupted_command_says_what_is_kept(waiting, start, command):
    code, stderr = stopped(start, waiting, COMMANDS[command], signal.SIGINT)
    assert code == 130
    said = "interrupted: finished episodes are in out.jsonl.unfinished; the same command resumes with the rest\n"
    assert stderr.endswith(said)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_link_and_a_pipe_stay_what_they_are(waiting, agentrl, command):
    (waiting / "out.jsonl").symlink_to("real.jsonl")
    assert agentrl(*COMMANDS[command]) == 0
    assert (waiting / "out.jsonl").is_symlink()
    assert len(rows(waiting / "real.jsonl")) == 3
    again = [arg if arg != "out.jsonl" else "/dev/null" for arg in COMMANDS[command]]
    assert agentrl(*again) == 0, agentrl.stderr
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    assert not list(Path("/dev").glob("*null.*"))


def test_a_full_disk_is_one_line(waiting, agentrl):
    command = [arg if arg != "out.jsonl" else "/dev/full" for arg in COMMANDS["play"]]
    assert agentrl(*command) == 1
    assert agentrl.stderr.startswith("error: No space left on device")
    assert agentrl.stderr.count("\n") == 1
