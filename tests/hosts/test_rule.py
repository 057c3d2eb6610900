"""The rule of doors: one short file, the host imported inside functions, no loop over turns, no template, no parser,
and a line that says what is lost."""

from __future__ import annotations

import ast

import pytest

from tests.house import ROOT

FOLDER = ROOT / "agentrl" / "hosts"
PARTS = {"__init__", "turned", "equality", "trl_vllm", "export"}
"""Files that are no doors: what the doors share, their proof, an engine, the scripts of `agentrl export`."""
DOORS = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in PARTS)
HOSTS = {"trl", "datasets", "vllm", "tinker", "tinker_cookbook", "verifiers", "openenv", "verl", "fastapi", "torch"}
FORBIDDEN = {"parse", "bridge", "apply_chat_template", "encode", "decode", "step", "append_observation"}
"""Calls with which a door would render, parse or play a turn by itself."""


def tree(door: str) -> ast.Module:
    return ast.parse((FOLDER / f"{door}.py").read_text(encoding="utf-8"))


def test_there_are_doors():
    assert {"trl"} <= set(DOORS)


@pytest.mark.parametrize("door", DOORS)
def test_a_door_is_short(door):
    assert len((FOLDER / f"{door}.py").read_text(encoding="utf-8").splitlines()) < 250


@pytest.mark.parametrize("door", DOORS)
def test_a_door_names_what_is_lost_and_its_version(door):
    lines = [line for line in ast.get_docstring(tree(door)).splitlines() if line.startswith("lost here: ")]
    assert len(lines) == 1
    assert len(lines[0]) > 20
    names = {target.id for node in tree(door).body if isinstance(node, ast.Assign) for target in node.targets}
    assert "VERSION" in names
    assert (ROOT / "tests" / "hosts" / f"test_{door}.py").exists(), "each door has its equality test"


@pytest.mark.parametrize("door", [path.stem for path in FOLDER.glob("*.py")])
def test_the_host_is_imported_inside_functions(door):
    modules = set()
    for node in tree(door).body:
        if isinstance(node, ast.Import):
            modules |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            modules.add(node.module.partition(".")[0])
    assert not modules & HOSTS


@pytest.mark.parametrize("door", DOORS)
def test_a_door_plays_no_turn_itself(door):
    called = {
        node.func.attr
        for node in ast.walk(tree(door))
        if isinstance(node, ast.Call)
        if isinstance(node.func, ast.Attribute)
    }
    assert not called & FORBIDDEN
    assert not any(isinstance(node, ast.While) for node in ast.walk(tree(door))), "turns are taken by run_episode"
