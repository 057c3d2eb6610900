"""`agentrl export`: the scripts are valid programs, and wrong input is refused in one line. Hosts run them in their own
tests."""

from __future__ import annotations

import ast

import pytest
import typer
from typer.testing import CliRunner

from agentrl import ConfigError
from agentrl.cli.export import HostName, export
from agentrl.hosts.export import SCRIPTS, script

DOORS = {"agent_loop", "TRLRollouts", "TinkerRollouts", "environment", "create_app"}
ENV = "tests.hosts.envs:Weather"


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    app = typer.Typer()
    app.command()(export)
    return lambda *words: CliRunner().invoke(app, words)


def test_each_door_has_its_script():
    assert {host.value for host in HostName} == set(SCRIPTS)


@pytest.mark.parametrize("host", SCRIPTS)
def test_a_script_is_a_short_program(host, run, tmp_path):
    done = run(ENV, "--to", host, "--model", "mine/model", "--set", "limits.turns=3", "--set", "env_config={}")
    file = SCRIPTS[host].file
    assert (done.exit_code, done.output) == (0, f"wrote {file}\n")
    text = (tmp_path / file).read_text()
    tree = ast.parse(text)
    assert len(text.splitlines()) < 50
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    (door,) = [node for node in calls if getattr(node.func, "id", "") in DOORS]
    assert ast.literal_eval(door.args[0]) == ENV
    assert ast.literal_eval(door.keywords[0].value)["turns"] == 3
    assert host == "openenv" or "mine/model" in text


def test_wrong_input_is_refused_in_one_line(run, tmp_path):
    (tmp_path / "train_trl.py").write_text("")
    for words, message in (
        (("--to", "trl"), "error: train_trl.py exists; name another file with --out"),
        (("--to", "trl", "--out", "new.py", "--set", "limts.turns=3"), "error: HostedEnv(...): unknown key limts"),
        (
            ("--to", "trl", "--out", "new.py", "--data", "none.jsonl"),
            "error: none.jsonl: no such data file; give a JSONL file",
        ),
    ):
        done = run(ENV, *words)
        assert done.exit_code == 2
        assert done.output.startswith(message)
        assert done.output.count("\n") == 1
    assert run(ENV, "--to", "nobody").exit_code == 2
    with pytest.raises(ConfigError, match="there is no door to tlr; did you mean trl"):
        script(ENV, "tlr", model="m", file="f", settings={})
    with pytest.raises(ConfigError, match="Duel has seats"):
        script("tests.hosts.envs:Duel", "trl", model="m", file="f", settings={})
