from __future__ import annotations

import json
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


def modules_after(*words):
    """The modules that a command line imports, in a new process."""
    code = f"""import json, sys
sys.argv = {["agentrl", *words]!r}
from agentrl.cli import main
try:
    main()
except SystemExit:
    print("\\n" + json.dumps(list(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


COMMAND = {"agentrl", "agentrl._util", "agentrl._util.garbage", "agentrl._util.torch_threads"} | {
    f"agentrl.{name}" for name in ("cli", "cli._codes", "cli._installed")
}
HEAVY = {"torch", "transformers", "tokenizers", "aiohttp", "numpy", "matplotlib"}


@pytest.mark.parametrize("words", [("--version",), ("trian",), ("--nope",)])
def test_the_version_and_a_typo_import_no_command(words):
    modules = modules_after(*words)
    assert {name for name in modules if name.startswith("agentrl")} == COMMAND
    assert not modules & {*HEAVY, "asyncio", "jinja2", "yaml"}


@pytest.mark.parametrize(
    ("words", "unused"),
    [
        (("init", "--help"), "env"),
        (("train", "--nope"), "episode"),
        (("slime", "rehearse", "--help"), "rehearse.launch"),
    ],
)
def test_a_command_imports_no_other(words, unused):
    modules = modules_after(*words)
    assert {name for name in modules if name.startswith("agentrl.cli.") and "._" not in name} <= {
        f"agentrl.cli.{name}" for name in (words[0], "models", "options", "settings")
    }
    assert not {f"agentrl.{unused}", "agentrl.rollout", "agentrl.render"} & modules


@pytest.mark.thorough
def test_help_imports_nothing_heavy():
    assert not modules_after("--help") & HEAVY
