"""What a hook gives wrongly is reported with the line of the hook."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ENV = '''from agentrl import AgentEnv, Env, Task, tool
from agentrl.testing import call

class Good(Env):
    @classmethod
    def tasks(cls, config, split):
        yield Task(prompt=split, label="x")
    async def helper(self): ...
    @tool
    async def look(self, at: str) -> str:
        """Look."""
        return at
    def score(self, trajectory): return 1.0

class Reset(Good):
    def reset(self, task): return 3
class Step(Good):
    def step(self, action): return "x"
class Score(Good):
    def score(self, trajectory): return "good"
class Tasks(Good):
    @classmethod
    def tasks(cls, config, split): return ["a"]
class NoList(Good):
    @classmethod
    def tasks(cls, config, split): return 7
class Forgets(Good):
    def score(self, trajectory):
        self.helper()
        return 1.0

def knows(task):
    yield call("look", at="x")
    yield "done"
def misspells(task):
    yield call("lokk", at="x")
    yield "done"
def explores(task):
    if task.prompt == "train":
        yield call("lokk", at="x")
    yield "done"
'''
LINES = {
    match[1]: number for number, line in enumerate(ENV.splitlines(), 1) if (match := re.match(r"class (\w+)", line))
}


def play(folder: Path, env: str, player: str = "knows", *more: str) -> subprocess.CompletedProcess[str]:
    (folder / "my_env.py").write_text(ENV)
    command = [sys.executable, "-m", "agentrl", "play", f"my_env.py:{env}", "--player", f"my_env.py:{player}", *more]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("env", "below", "says"),
    [
        ("Reset", 1, "Reset.reset gave 3; return text"),
        ("Step", 1, "Step.step returned str, not a StepResult"),
        ("Score", 1, "the reward is 'good'; it must be a finite number"),
        ("Tasks", 1, "number 1 is a str, not a Task"),
        ("NoList", 1, "gave a int, which is not iterable"),
    ],
)
def test_a_wrong_type_names_the_line_of_the_hook(tmp_path, env, below, says):
    ran = play(tmp_path, env)
    last = ran.stderr.splitlines()[-1]
    assert says in last
    assert f"my_env.py:{LINES[env] + below}" in last
    assert ran.returncode in (1, 2)


@pytest.mark.thorough
def test_a_coroutine_that_is_not_awaited_names_the_line_that_made_it(tmp_path):
    ran = play(tmp_path, "Forgets")
    line = LINES["Forgets"] + 2
    assert f"warning: my_env.py:{line}: coroutine 'Good.helper' was never awaited; write `await`" in ran.stderr
    assert "_concurrency" not in ran.stderr


@pytest.mark.thorough
def test_a_script_that_calls_an_unknown_tool_ends_with_the_remedy(tmp_path):
    ran = play(tmp_path, "Good", "misspells")
    assert ran.returncode == 2
    assert ran.stderr.splitlines()[-1] == (
        "error: --player my_env.py:misspells called a tool that does not exist in 1 of 1 episodes: 'lokk'; did you "
        "mean look? (called 1 times)"
    )
