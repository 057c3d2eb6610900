from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agentrl.cli import app

HERE = Path(__file__).parent


def run(*args: str):
    return CliRunner().invoke(app, ["check", *map(str, args)])


@pytest.mark.thorough
def test_a_defect_ends_with_1_and_is_printed_with_its_line(monkeypatch):
    monkeypatch.chdir(HERE)
    result = run("defects/key_error.py:Known", "--limit", "1")
    assert result.exit_code == 1, result.output
    assert "defects/key_error.py:18  error: tool look raises KeyError" in result.stdout
    assert "1 error, 0 warnings; not checked: " in result.stdout
    rows = json.loads(run("defects/key_error.py:Known", "--limit", "1", "--json").stdout)["findings"]
    rows = [(row["check"], row["line"]) for row in rows if row["level"] == "error"]
    assert rows == [("robustness", 18)]


@pytest.mark.thorough
def test_a_warning_alone_ends_with_0(monkeypatch):
    monkeypatch.chdir(HERE)
    result = run("defects/no_description.py:Silent", "--limit", "1")
    assert result.exit_code == 0, result.output
    assert "defects/no_description.py:16  warning: " in result.stdout
    assert "unchecked: players: whether the task can be won" in result.stdout
    assert run("defects/no_description.py:Silent", "--limit", "1", "--strict").exit_code == 1


def test_a_wrong_command_ends_with_2(tmp_path):
    file = tmp_path / "empty.py"
    file.write_text(
        "from agentrl import Env, tool\n\n\nclass Empty(Env):\n    @tool\n    def look(self) -> str: return ''\n"
    )
    result = run(f"{file}:Empty")
    assert result.exit_code == 2
    assert "name a file of tasks with --data" in result.output


TWO_SPLITS = """
import time
from agentrl import Env, Task, tool

class Halves(Env):
    @classmethod
    def tasks(cls, config, split):
        for n in range(6 if split == "eval" else 18):
            yield Task(prompt=f"What is half of {split} {2 * n}?", label=f"{split} {n}")

    @tool
    async def half(self, n: int) -> str:
        \"\"\"Half of a number.\"\"\"
        return str(n // 2)

    async def score(self, trajectory):
        return float(trajectory.answer == self.task.label)

def gold(task):
    with open("played.txt", "a") as file:
        print(task.split, task.label, file=file)
    yield task.label
"""


@pytest.mark.thorough
def test_an_endless_generator_is_not_said_to_be_counted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    endless = TWO_SPLITS.replace('range(6 if split == "eval" else 18)', "itertools.count()")
    Path("endless.py").write_text(endless.replace("import time", "import itertools"))
    result = run("endless.py:Halves", "--gold", "endless.py:gold", "--limit", "1", "--seconds", "1.5")
    assert "players: 1 of 200 or more held-out and 1000 or more training tasks" in result.stdout


@pytest.mark.thorough
def test_tasks_of_both_splits_are_played_and_it_says_of_how_many(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(import_module("agentrl.cli.check_env"), "_EVERY_S", 0.02)
    Path("halves.py").write_text(TWO_SPLITS)
    result = run("halves.py:Halves", "--gold", "halves.py:gold")
    assert result.exit_code == 0, result.output
    assert "players: 3 of 6 held-out and 18 training tasks" in result.stdout
    played = list(dict.fromkeys(Path("played.txt").read_text().splitlines()))
    assert played[:3] == ["train train 0", "eval eval 0", "train train 1"], "before the constant players' tasks"
    running = [line for line in result.stderr.splitlines() if line.startswith("checking ")]
    assert any("cancellation" in line or "robustness" in line or "state" in line for line in running), result.stderr
    assert "checking " not in result.stdout
