"""Environments by name: the entry points of installed packages, as commands and configurations find them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agentrl import ConfigError, EnvFactory
from agentrl.cli import app
from agentrl.env.factory import load_env
from agentrl.env.registry import GROUP, entries, is_name, path_of

MODULE = '''
from pydantic import BaseModel
from agentrl import Env, tool


class Chess(Env):
    """Play chess against a club player.

    More of it.
    """

    @tool
    async def move(self, square: str) -> str:
        """Move a piece."""
        return square

    @classmethod
    def needs(cls, config, episodes):
        return [f"a chess engine at port 9 for {episodes} (stockfish)"]


class Keyed(BaseModel):
    account: str


class Hosted(Chess):
    """Plays at a service."""

    config: Keyed


class Fails(Chess):
    @classmethod
    def needs(cls, config, episodes):
        raise KeyError("oops")
'''


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A distribution with five environments, two of them broken; one name is claimed twice."""
    for name, points in (
        ("board", "chess = boards:Chess\nhosted = boards:Hosted\nfails = boards:Fails\ngone = boards_gone:X\n"),
        ("other", "twice = boards:Chess\n"),
        ("third", "twice = boards:Hosted\n"),
    ):
        info = tmp_path / f"{name}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
        (info / "entry_points.txt").write_text(f"[{GROUP}]\n{points}")
    (tmp_path / "boards.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "boards", raising=False)
    return tmp_path


def test_a_name_is_found_wherever_an_env_is_asked_for(installed, tmp_path):
    assert path_of("chess") == "boards:Chess"
    assert load_env("chess") is load_env("boards:Chess")
    assert EnvFactory("chess").cls.__name__ == "Chess"
    assert [is_name(path) for path in ("chess", "my_env.py:Chess", "boards:Chess", "boards.Chess", "x.py", "")] == [
        True,
        *[False] * 5,
    ]


def test_slimes_configuration_names_it_too(installed):
    from agentrl.slime.check.setup import open_env, read_config

    config = read_config({"agentrl": {"env": "chess"}})
    assert open_env(config, config.env_path({})) is load_env("boards:Chess")


def test_an_unknown_name_says_what_comes_close_and_how_to_name_a_class_of_ones_own(installed):
    with pytest.raises(ConfigError, match=r"has the name 'ches'; did you mean chess\?$"):
        load_env("ches")
    with pytest.raises(ConfigError, match="has the name 'x'; `agentrl envs` lists them, and a class of your own is"):
        load_env("x")


def test_a_name_that_two_packages_claim_is_nobody_s(installed):
    with pytest.raises(ConfigError, match="twice is the name of boards:Chess and of boards:Hosted; name one of these"):
        load_env("twice")


def test_the_command_lists_one_line_each_and_a_broken_one_with_its_reason(installed):
    lines = dict(line.split(maxsplit=1) for line in CliRunner().invoke(app, ["envs"]).stdout.splitlines())

    assert lines["chess"] == "Play chess against a club player. [tools: move; needs: a chess engine]"
    assert lines["hosted"] == "Plays at a service. [tools: move; needs: config: account]"
    assert lines["gone"] == "broken: boards_gone:X: no module 'boards_gone'; install it, or put it on PYTHONPATH"
    assert lines["fails"].startswith("broken: needs failed: ")
    assert lines["fails"].endswith("KeyError: 'oops'")

    as_json = {one["name"]: one for one in json.loads(CliRunner().invoke(app, ["envs", "--json"]).stdout)}
    assert as_json["chess"] == {
        "name": "chess",
        "path": "boards:Chess",
        "package": "board 1.2",
        "summary": "Play chess against a club player.",
        "tools": ["move"],
        "tools_later": False,
        "agent": False,
        "needs": ["a chess engine at port 9 for 1 (stockfish)"],
        "broken": "",
    }


def test_the_entries_are_those_of_the_path_as_it_is(installed, monkeypatch):
    assert "chess" in [entry.name for entry in entries()]
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p != str(installed)])
    assert "chess" not in [entry.name for entry in entries()]
