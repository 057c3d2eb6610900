"""Commands of installed packages: the entry points `agentrl.commands`."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest
import typer

from agentrl._util.loading import load_object
from agentrl.cli import app
from agentrl.cli._installed import GROUP, Commands

ROOT = Path(__file__).parents[2]


@pytest.fixture
def install(tmp_path, monkeypatch):
    """A function that installs a package with one command: its module's text, and the entry point."""
    monkeypatch.syspath_prepend(tmp_path)

    def installed(text, value, name="weather"):
        (tmp_path / f"{value.partition(':')[0]}.py").write_text(text)
        info = tmp_path / "plugin-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{GROUP}]\n{name} = {value}\n")

    return installed


def test_a_package_adds_a_command(install):
    install("def weather():\n    pass\n", "commands_that_work:weather")
    assert Commands()["weather"].name == "weather"


def test_only_the_command_that_is_asked_for_is_imported(install):
    install("def weather():\n    pass\n", "commands_in_time:weather")
    commands = Commands()
    assert "weather" in list(commands)
    assert commands["show"].name == "show"
    assert "commands_in_time" not in sys.modules
    assert commands["weather"] is commands["weather"]
    assert "commands_in_time" in sys.modules


def test_a_package_adds_a_command_to_a_group(install, agentrl):
    install("def weather():\n    print('rain')\n", "commands_in_a_group:weather", "slime.weather")
    commands = Commands()
    assert not {"weather", "slime.weather"} & set(commands)
    assert "commands_in_a_group" not in sys.modules
    assert {"init", "rehearse", "weather"} <= set(commands["slime"].commands)
    assert agentrl("slime", "weather") == 0
    assert agentrl.stdout == "rain\n"


def test_a_group_keeps_its_own_commands_if_an_added_one_fails_to_import(install, agentrl):
    install("1 / 0\n", "commands_of_a_group_that_fail:weather", "slime.weather")
    assert agentrl("slime", "init", "--help") == 0
    assert "warning: no command slime.weather: " in agentrl.stderr
    assert agentrl("slime", "weather") == 2


def test_a_command_that_fails_to_import_is_left_out_with_a_warning(install, capsys):
    install("1 / 0\n", "commands_that_fail:weather")
    assert "weather" not in typer.main.get_command(app).list_commands(None)
    assert capsys.readouterr().err.startswith("warning: no command weather: commands_that_fail:weather: importing ")


def test_an_unknown_command(install, agentrl):
    install("def weather():\n    pass\n", "commands_that_work:weather")
    assert agentrl("wether") == 2
    assert "No such command 'wether'" in agentrl.stderr
    assert "weather" in agentrl.stderr


@pytest.mark.parametrize("module", ["commands_removed", "package_removed.commands"])
def test_the_command_of_a_removed_package_is_left_out(install, tmp_path, capsys, module):
    install("", "any:thing")
    points = tmp_path / "plugin-1.0.dist-info" / "entry_points.txt"
    points.write_text(f"[{GROUP}]\nweather = {module}:weather\n")
    assert "weather" not in typer.main.get_command(app).list_commands(None)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("folder", ["", "envs", "sandbox"])
def test_each_command_of_a_pyproject_exists_and_is_installed(folder):
    """An older installation lacks a new command: pip install --no-deps -e . -e envs -e sandbox."""
    file = ROOT / folder / "pyproject.toml"
    if not file.exists():
        pytest.skip("an sdist of agentrl-sdk has no envs and no sandbox")
    pyproject = tomllib.loads(file.read_text(encoding="utf-8"))
    commands = typer.main.get_command(app).commands
    names = {*commands, *(f"slime.{name}" for name in commands["slime"].commands)}
    for name, path in pyproject["project"]["entry-points"][GROUP].items():
        command = load_object(path)
        assert isinstance(command, typer.Typer) or callable(command), path
        assert name in names, name
