"""SIGTERM to a command that owns processes: they end with it, and so do their folders."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

BOXED = '''
from pathlib import Path
from agentrl import Env, StepResult
from agentrl_sandbox import LocalSandbox


class Boxed(Env):
    """Each episode starts two processes in a sandbox, one of which hides, and waits for ever."""

    async def reset(self, task):
        self.box = await self.enter(LocalSandbox(trusted=True))
        await self.box.exec("env -i setsid sleep 300 > /dev/null 2>&1 & echo $! >> ../pids")
        print("waiting", flush=True)
        await self.box.exec("sleep 300")

    def step(self, action):
        return StepResult("", reward=1.0, done=True)


def player(task):
    yield "Paris"
'''
COMMANDS = {
    "play": ("play", "boxed.py:Boxed", "--data", "tasks.jsonl", "--player", "boxed.py:player"),
    "train": ("train", "boxed.py:Boxed", "--data", "tasks.jsonl", "--out", "run", "--set", "concurrency=4"),
}


def alive(pid: str) -> bool:
    """One that is dead and waits for its parent is not."""
    try:
        return Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.thorough
@pytest.mark.skipif(not os.path.isdir("/proc"), reason="detached processes are found through /proc")
@pytest.mark.parametrize("command", COMMANDS)
def test_sigterm_leaves_no_process_and_no_folder(folder, start, monkeypatch, command):
    (folder / "boxed.py").write_text(BOXED)
    (folder / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(folder / "tmp"))
    process = start(*COMMANDS[command])
    assert process.stdout is not None
    waiting = (line for line in process.stdout if line == "waiting\n")
    assert next(waiting) == next(waiting)

    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=60)

    assert process.returncode == 143, stderr
    assert "\nterminated: " in f"\n{stderr}", stderr
    assert "Traceback" not in stderr
    pids = (folder / "tmp" / "pids").read_text().split()
    assert pids
    assert not [pid for pid in pids if alive(pid)]
    assert list((folder / "tmp").glob("agentrl-*")) == []


@pytest.mark.thorough
@pytest.mark.parametrize(
    "command",
    [
        ("eval", "my_env.py:Capitals", "--model", "tiny", "--data", "tasks.jsonl"),
        ("serve", "--model", "tiny", "--port", "0"),
        ("train", "my_env.py:Capitals", "--data", "tasks.jsonl", "--out", "run"),
    ],
    ids=lambda command: command[0],
)
def test_ctrl_c_does_not_wait_for_an_import(folder, start, command):
    (folder / "torch.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(300)\n")
    process = start(*command)
    assert process.stdout is not None
    assert "importing\n" in iter(process.stdout.readline, "")
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert stderr.startswith("interrupted: ")
    assert stderr.count("\n") == 1
