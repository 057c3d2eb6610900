"""A folder as a user has it: an Env, its players and its data; and the command, run in it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agentrl.cli import app

ROOT = Path(__file__).parents[2]

ENV = '''
from agentrl import Env, InfraError, tool
from agentrl.testing import call

FACTS = {"France": "The capital of France is Paris.", "Peru": "The capital of Peru is Lima."}


class Capitals(Env):
    @tool
    async def search(self, query: str) -> str:
        """Search the encyclopedia."""
        return FACTS[query]

    async def score(self, trajectory) -> float:
        return float(trajectory.answer == self.task.label)


class Unreliable(Capitals):
    async def step(self, action):
        if self.task.label == "Lima":
            raise InfraError("the encyclopedia is down")
        return await self.run_tools(action)


class Buggy(Capitals):
    async def score(self, trajectory) -> float:
        raise KeyError("oops")


class Unshared(Capitals):
    @classmethod
    def share(cls, config):
        raise InfraError("no engine answers; start one")


class Empty(Env):
    pass


def gold(task):
    text = yield call("search", query=task.metadata["about"])
    assert text == FACTS[task.metadata["about"]], "the tool's result, without the template's markup"
    yield task.label


def speaker(messages, tools):
    country = "France" if "France" in messages[0]["content"] else "Peru"
    if messages[-1]["role"] == "user":
        return call(tools[0]["function"]["name"], query=country)
    return {"France": "Paris", "Peru": "Lima"}[country]


async def later(messages, tools):
    return speaker(messages, tools)


def shrug(messages, tools):
    return "I do not know."


def failing(messages, tools):
    return messages[99]


def noop(task):
    yield "I do not know."


def always_one(trajectory):
    return 1.0


def of_seats(messages, tools, rng):
    return "Rome"


def no_generator(task):
    return task.label


def broken(task):
    yield call("search", query=task.metadata["whereabouts"])


def brief(task):
    yield call("search", query=task.metadata["about"])
'''

TASKS = """\
{"prompt": "What is the capital of France?", "label": "Paris", "metadata": {"about": "France"}}
{"prompt": "What is the capital of Peru?", "label": "Lima", "metadata": {"about": "Peru"}}
"""


class Command:
    """`agentrl` in this process. After each call `stdout`, `stderr` and `exception` hold what came of it."""

    stdout: str
    stderr: str
    exception: BaseException | None

    def __call__(self, *args: str | Path) -> int:
        result = CliRunner().invoke(app, [str(arg) for arg in args])
        self.stdout, self.stderr, self.exception = result.stdout, result.stderr, result.exception
        return result.exit_code


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with my_env.py and tasks.jsonl in it."""
    (tmp_path / "my_env.py").write_text(ENV)
    (tmp_path / "tasks.jsonl").write_text(TASKS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))  # loading a file adds its folder
    return tmp_path


@pytest.fixture
def agentrl() -> Command:
    return Command()


@pytest.fixture
def start(folder: Path) -> Callable[..., subprocess.Popen[str]]:
    """Start `python -m agentrl` in a separate process."""

    def run(*args: str) -> subprocess.Popen[str]:
        path = os.pathsep.join(str(ROOT / part) for part in ("", "envs", "sandbox"))
        return subprocess.Popen(
            [sys.executable, "-m", "agentrl", *args],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # A shell that runs the tests in its background has them ignore SIGINT, and children inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    return run
