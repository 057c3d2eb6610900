from __future__ import annotations

import subprocess
import sys

import pytest

import agentrl as package


def test_alone_it_prints_help(agentrl):
    assert agentrl() == 0
    for command in ("train", "eval", "serve", "play", "show"):
        assert f" {command} " in agentrl.stdout


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
