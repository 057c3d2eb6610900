from __future__ import annotations

import subprocess
import sys

import pytest
import typer

import agentrl as package
from agentrl.cli import app


def test_alone_it_prints_help(agentrl):
    assert agentrl() == 0
    for command in ("train", "eval", "serve", "play", "show"):
        assert f" {command} " in agentrl.stdout


def leaves(command, path=()):
    """The commands that do something, by their words: groups are left out."""
    inner = getattr(command, "commands", {})
    return [leaf for name in inner for leaf in leaves(inner[name], (*path, name))] or [" ".join(path)]


def test_a_stranger_has_few_commands_to_learn():
    commands = leaves(typer.main.get_command(app))
    assert len(commands) <= 20, commands


def test_version(agentrl):
    assert agentrl("--version") == 0
    assert agentrl.stdout == f"agentrl {package.__version__}\n"


def test_an_unknown_option_is_a_usage_error(agentrl):
    assert agentrl("train", "--nope") == 2
    assert "--nope" in agentrl.stderr


@pytest.mark.thorough
def test_help_imports_nothing_heavy():
    code = (
        "import sys\n"
        "sys.argv = ['agentrl', '--help']\n"
        "from agentrl.cli import main\n"
        "try:\n"
        "    main()\n"
        "except SystemExit:\n"
        "    pass\n"
        "heavy = {'torch', 'transformers', 'tokenizers', 'aiohttp', 'numpy', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Usage" in done.stdout
