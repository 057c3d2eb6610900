"""The digest of data depends on what the data hold: not on addresses, the order of sets, or the process."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from random import Random
from threading import Lock
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from agentrl import ConfigError, Raw, Task
from agentrl._util.content import content
from agentrl.cli.results import Results
from agentrl.env.config import own_config
from agentrl.env.env import Env, own_task
from agentrl.rollout import TaskStream


class Door:
    def __init__(self, number: int = 0) -> None:
        self.number, self.near = number, set[Any]()


@dataclass(frozen=True)
class Place:
    x: int
    doors: list[Door] = field(default_factory=list, hash=False)


class Slots:
    __slots__ = ("at",)

    def __init__(self, at: int) -> None:
        self.at = at


VALUES: list[tuple[Callable[[], Any], Callable[[], Any]]] = [
    (lambda: Door(1), lambda: Door(2)),
    (lambda: [Door(1), Door(1)], lambda: [Door(1)] * 2),
    (lambda: {Door(1), Door(2), Door(3)}, lambda: {Door(1), Door(2), Door(4)}),
    (lambda: {frozenset("ab"), frozenset("cd")}, lambda: {frozenset("ac"), frozenset("bd")}),
    (lambda: {Place(1), Place(2)}, lambda: {Place(1), Place(3)}),
    (lambda: Place(1, [Door(1)]), lambda: Place(1, [Door(2)])),
    (lambda: Slots(1), lambda: Slots(2)),
    (lambda: Random(1), lambda: Random(2)),
    (lambda: np.zeros(5000), lambda: np.array([*[0.0] * 2500, 1.0, *[0.0] * 2499])),
    (lambda: deque([Door(1)]), lambda: deque([Door(2)])),
    (lambda: Counter("aab"), lambda: Counter("aabb")),
    (lambda: MappingProxyType({"a": [Door(1)]}), lambda: MappingProxyType({"a": [Door(2)]})),
    (lambda: {1: "a", "b": 2, (3, 4): None}, lambda: {1: "a", "b": 2, (3, 5): None}),
    (lambda: range(10**12), lambda: range(10**13)),
    (lambda: Door.__init__, lambda: Slots.__init__),
    (lambda: date(2026, 1, 1), lambda: date(2026, 1, 2)),
    (lambda: [b"a", 1j], lambda: [b"b", 1j]),
]


@pytest.mark.parametrize(("one", "other"), VALUES)
def test_equal_content_has_one_text_and_other_content_another(one, other):
    kept = [one() for _ in range(3)]  # at three addresses
    assert len({content(value) for value in kept}) == 1
    assert content(other()) != content(kept[0])


@pytest.mark.parametrize("made", [Lock, lambda: (n for n in "ab")])
def test_what_cannot_be_pickled_is_the_name_of_its_class(made):
    kept = [made(), made()]
    assert content(kept[0]) == content(kept[1])


def test_values_that_hold_themselves_have_a_text():
    def world() -> list[Door]:
        doors = [Door(n) for n in range(30)]
        for door in doors:
            door.near = set(doors[door.number - 2 : door.number + 3])
        return doors

    ring: list[Any] = [1]
    ring.append(ring)
    assert content(ring) == '[1, "..."]'
    assert content(world()) == content(world())


def test_plain_data_are_hashed_as_before():
    task = Task(
        prompt=Raw("é"), metadata={"b": [1, 2.5, None, True], "a": {"10": 1, "9": "\ud800"}}, tools=({},), id="1"
    )
    before = {
        "prompt": {"text": "é", "end": ""},
        "label": None,
        "metadata": task.metadata,
        "tools": [{}],
        "id": "1",
        "seed": 0,
        "split": "train",
    }
    assert content(task) == json.dumps(before, sort_keys=True)
    assert content({10: "a", 9: "b"}) == json.dumps({10: "a", 9: "b"}, sort_keys=True)
    rows = TaskStream([task], seed=0).state_dict()["rows"]
    assert rows == hashlib.sha256(json.dumps(before, sort_keys=True).encode()).hexdigest()[:8]


WRITES = """
from agentrl import Task
from agentrl.env.env import own_task
from tests._util.test_content import VALUES, content
print(*(content(one()) for one, _ in VALUES), own_task(Task(metadata={"a": {"b", "c"}}, seed=None)).seed, sep="\\n")
"""


@pytest.mark.thorough
def test_the_text_is_the_same_in_every_process():
    written = {
        subprocess.run(
            [sys.executable, "-c", WRITES],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            cwd=Path(__file__).parents[2],
        ).stdout
        for seed in "123"
    }
    assert len(written) == 1


def test_a_seed_does_not_follow_from_an_address():
    task = Task(metadata={"door": Door()}, seed=None)
    kept = [own_task(task) for _ in range(3)]
    assert len({one.seed for one in kept}) == 1
    assert own_task(Task(metadata={"door": Door(2)}, seed=None)).seed != kept[0].seed


def test_tasks_of_objects_are_found_again_in_a_file_of_results():
    def keys(*numbers: int) -> list[str]:
        return [*Results([Task(metadata=MappingProxyType({"door": Door(n)})) for n in numbers], about={}).keys]

    assert keys(1, 2) == keys(1, 2)
    assert keys(1, 2) == keys(2, 1)[::-1]


def test_a_view_is_copied_as_a_view():
    inner = {"all": ["a"], "deep": MappingProxyType({"b": [1]})}
    task = Task(metadata=MappingProxyType(inner), label=MappingProxyType({"c": [2]}))
    own = own_task(task)
    assert own == task
    assert isinstance(own.metadata, MappingProxyType)
    own.metadata["all"].clear()
    own.metadata["deep"]["b"].clear()
    own.label["c"].clear()
    assert task == replace(task, metadata={"all": ["a"], "deep": {"b": [1]}}, label={"c": [2]})
    assert pickle.loads(pickle.dumps(task)) == deepcopy(task) == task  # parking pickles the task


def test_what_cannot_be_copied_is_named():
    made = (n for n in "ab")
    with pytest.raises(ConfigError, match=r"generator.* at metadata\['x'\]\[1\]\['made'\]\); put"):
        own_task(Task(id="a", metadata={"ok": 1, "x": [0, {"made": made}]}))
    with pytest.raises(ConfigError, match=r"at label\)"):
        own_task(Task(id="a", label=made))
    with pytest.raises(ConfigError, match=r"env_config of Env: .* at \['lock'\]\)"):
        own_config(Env, {"lock": Lock()})
    ring: list[Any] = [made]
    ring.insert(0, ring)
    with pytest.raises(ConfigError, match=r"at metadata\['ring'\]\[1\]\)"):
        own_task(Task(id="a", metadata={"ring": ring}))
