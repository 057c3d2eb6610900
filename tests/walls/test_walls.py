"""The core works without its leaves: training, checks, the viewer, templates, local engines, envs and sandboxes."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.house import ROOT, load_house

LEAVES = ("train", "hosts", "check", "view", "init", "rehearse", "engine/local", "engine/sglang/training")
COMMAND_HELPERS = {
    "agentrl.cli.check_env": "only `agentrl check` uses it",
}
"""Modules of leaf commands that are no command, and why."""


def is_leaf(module):
    folders = tuple(f"agentrl.{leaf}".replace("/", ".") for leaf in LEAVES)
    return f"{module}.".startswith(tuple(f"{folder}." for folder in folders))


def leaf_commands():
    for folder in ("", "envs", "sandbox"):
        pyproject = tomllib.loads((ROOT / folder / "pyproject.toml").read_text(encoding="utf-8"))
        yield from (
            path.partition(":")[0] for path in pyproject["project"]["entry-points"]["agentrl.commands"].values()
        )


@pytest.mark.thorough
def test_the_core_imports_no_leaf():
    outside = {*leaf_commands(), *COMMAND_HELPERS}
    crossing = [
        f"{each.importer} imports {each.imported}"
        for each in load_house().imports(ROOT)
        if not (each.typing_only or is_leaf(each.importer) or each.importer in outside)
        if is_leaf(each.imported)
    ]
    assert crossing == []


def imported_names(node):
    """The modules that the code of a syntax tree imports, except those imported for type checkers alone."""
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        yield node.module or ""
    for inner in ast.iter_child_nodes(node):
        yield from imported_names(inner)


def test_the_core_imports_no_other_distribution():
    """Templates are files of a user's project."""
    others = ("agentrl_envs", "agentrl_sandbox")
    crossing = [
        file.relative_to(ROOT).as_posix()
        for file in sorted((ROOT / "agentrl").rglob("*.py"))
        if "templates" not in file.parts
        if any(name.partition(".")[0] in others for name in imported_names(ast.parse(file.read_text(encoding="utf-8"))))
    ]
    assert crossing == []


HIDE = """
import sys
from importlib.abc import MetaPathFinder

class Missing(MetaPathFinder):
    def find_spec(self, name, *_):
        if name.partition(".")[0] in ("agentrl_envs", "agentrl_sandbox"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
"""
"""Hides the distributions that an environment of tests has installed, from all processes in the copy."""


@pytest.fixture(scope="module")
def core(tmp_path_factory):
    """A folder with a copy of the core alone, and the script that plays there."""
    folder = tmp_path_factory.mktemp("core")
    leaves = {ROOT / "agentrl" / leaf for leaf in LEAVES}
    assert all(leaf.is_dir() for leaf in leaves)

    def left_out(parent, names):
        return [name for name in names if Path(parent) / name in leaves or name == "__pycache__"]

    shutil.copytree(ROOT / "agentrl", folder / "agentrl", ignore=left_out)
    shutil.copy(Path(__file__).with_name("played_alone.py"), folder)
    (folder / "sitecustomize.py").write_text(HIDE)
    return folder


def command(core, *words):
    environment = {**os.environ, "PYTHONPATH": str(core)}
    return {"args": [sys.executable, *words], "cwd": core, "env": environment, "text": True}


@pytest.mark.thorough
@pytest.mark.parametrize("module", ["agentrl.train", "agentrl.check", "agentrl_envs", "agentrl_sandbox"])
def test_the_copy_has_no_leaf(core, module):
    done = subprocess.run(**command(core, "-c", f"import agentrl, {module}"), capture_output=True)
    assert f"No module named '{module}'" in done.stderr


@pytest.mark.thorough
@pytest.mark.parametrize("part", ["env", "slime", "gateway"])
def test_an_episode_is_played(core, part):
    done = subprocess.run(**command(core, "played_alone.py", part), capture_output=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{part}: 1.0\n"


@pytest.mark.thorough
@pytest.mark.timeout(300)  # three processes import the core one after the other
def test_a_model_is_served(core):
    words = ("served", "--model", "tiny", "--engine", "scripted", "--set", "engine_config.turns=played_alone.py:answer")
    served = subprocess.run(**command(core, "played_alone.py", *words), capture_output=True)
    assert served.returncode == 0, served.stderr
    assert served.stdout == "served: Paris\n"
