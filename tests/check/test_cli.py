from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from agentrl.cli import app

HERE = Path(__file__).parent


def run(*args: str):
    return CliRunner().invoke(app, ["check", *map(str, args)])


def test_a_defect_ends_with_1_and_is_printed_with_its_line(tmp_path, monkeypatch):
    monkeypatch.chdir(HERE)
    out = tmp_path / "found.json"
    result = run("defects/key_error.py:Known", "--json", str(out), "--limit", "1")
    assert result.exit_code == 1, result.output
    assert "defects/key_error.py:18  error: tool look raises KeyError" in result.stdout
    assert "1 errors, 0 warnings" in result.stdout
    found = json.loads(out.read_text())["findings"]
    assert [(one["check"], one["line"], one["severity"]) for one in found] == [("robustness", 18, "error")]


def test_a_warning_alone_ends_with_0(monkeypatch):
    monkeypatch.chdir(HERE)
    result = run("defects/no_description.py:Silent", "--limit", "1")
    assert result.exit_code == 0, result.output
    assert "defects/no_description.py:16  warning: " in result.stdout
    assert "whether the task can be won" in result.output  # what was not checked is told


def test_a_wrong_command_ends_with_2(tmp_path):
    file = tmp_path / "empty.py"
    file.write_text(
        "from agentrl import Env, tool\n\n\nclass Empty(Env):\n    @tool\n    def look(self) -> str: return ''\n"
    )
    result = run(f"{file}:Empty")
    assert result.exit_code == 2
    assert "name a file of tasks with --data" in result.output
