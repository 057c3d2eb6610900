"""Imports between rooms point down: docs/structure.md draws the order, and this holds it."""

from __future__ import annotations

import ast
from collections import defaultdict

import pytest

from tests.house import ROOT, load_house

ORDER = (
    ("__main__", "rehearse"),
    ("cli",),
    ("slime", "hosts", "check", "init", "view"),
    ("train", "rewards"),
    ("rollout", "gateway", "testing"),
    ("chat", "episode", "workers"),
    ("engine", "env", "monitor"),
    ("render", "models", "trajectory"),
    ("_util",),
    ("types", "sandbox"),
    ("errors",),
    ("plain", "blame", "image"),
)
"""From the top down. A room imports only what is below its line."""
REACHES_UP = {
    ("rewards", "slime"): "a grader that slime calls reads slime's samples; imported when it is called",
}


@pytest.fixture(scope="module")
def house():
    return load_house()


@pytest.fixture(scope="module")
def imports(house):
    return house.imports(ROOT)


def test_every_room_has_its_place(house):
    rooms = {house.box(module) for module in house.modules(ROOT)} - {"__init__"}
    assert rooms == {room for storey in ORDER for room in storey}


@pytest.mark.thorough
def test_imports_point_down(house, imports):
    height = {room: number for number, storey in enumerate(reversed(ORDER)) for room in storey}
    up = []
    for one in imports:
        upper, lower = house.box(one.importer), house.box(one.imported)
        if one.typing_only or upper == lower or "__init__" in (upper, lower) or (upper, lower) in REACHES_UP:
            continue
        if height[upper] <= height[lower]:
            up.append(f"{one.importer} imports {one.imported}")
    assert not up


def test_imports_of_rollout_point_down(imports):
    """The loop plays, and what is played comes from data."""
    height = {"data": 0, "play": 1, "loop": 2}
    up = [
        f"{link.importer} imports {link.imported}"
        for link in imports
        if link.importer.startswith("agentrl.rollout.") and link.imported.startswith("agentrl.rollout.")
        if height[link.importer.split(".")[2]] < height[link.imported.split(".")[2]]
    ]
    assert not up


def test_no_circle_is_left(house, imports):
    assert house.circles(imports) == [], "imports for type checkers alone count, too"


PACKAGES = ("agentrl", "envs/agentrl_envs", "sandbox/agentrl_sandbox")
ALONE = {
    "agentrl/init/templates/": "a project gets one of them, and each calls its Env MyEnv",
    "envs/agentrl_envs/coding/formats/inside/": "they run in a sandbox, without agentrl",
}
"""Folders whose files are never loaded beside other code, and why."""
SHARED_NAMES = {
    "Image": "a picture that a model sees, and an image of Docker: each has the name that its field gives it",
    "SearchR1": "the Env and its grader have the paper's name, each in its own public room",
}


@pytest.mark.thorough
def test_a_class_name_is_used_once():
    places = defaultdict(list)
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            path = file.relative_to(ROOT).as_posix()
            if path.startswith(tuple(ALONE)):
                continue
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    places[node.name].append(f"{path}:{node.lineno}")
    twice = {name: found for name, found in places.items() if len(found) > 1}
    assert twice.keys() == SHARED_NAMES.keys(), twice
