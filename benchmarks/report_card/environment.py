"""An environment on the report card, and the games that the suites share."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from math import inf
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

from agentrl_envs.adapters.games import Game, GameTurn

SUITES = "benchmarks.report_card.suites"
Move: TypeAlias = Callable[[str, Random], str]
"""A random player: reads an observation, and returns its turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """An environment of a suite, played by the suite's API."""

    name: str
    open: Callable[[], Game]
    move: Move
    rules: str = ""
    """Environments of a suite with the same `rules` differ only in size, or in the form of the observation."""
    gold: Callable[[int], Sequence[str]] | None = None
    """The right turns for a seed, if the suite has them."""
    least: float = -inf
    most: float = inf
    """The range of an episode's reward, as the suite declares the range."""
    reads_text: bool = True
    """Whether the model's text reaches the environment. False: only actions of a space do."""
    constants: Sequence[str] = ()
    """Turns that a constant player repeats, in addition to the general ones."""
    solved: float = inf
    """The reward that counts as solved."""
    turns: int = 24
    seeds: int = 4


class Question:
    """A game of a single turn: `ask` gives the question and its entry for a seed, `grade` scores a text."""

    def __init__(self, ask: Callable[[int], tuple[str, Any]], grade: Callable[[Any, str], float]) -> None:
        self._ask, self._grade = ask, grade

    def begin(self, seed: int) -> str:
        question, self._entry = self._ask(seed)
        return question

    def answer(self, text: str) -> GameTurn:
        return GameTurn("", self._grade(self._entry, text), done=True)

    def close(self) -> None:
        """Do nothing: a question has no resources."""


def random_text(prompt: str, rng: Random) -> str:
    """A word or a number of the prompt."""
    return rng.choice([*prompt.split(), str(rng.randint(-9, 99))])


def legal_action(prompt: str, rng: Random) -> str:
    return rng.choice(prompt.rpartition("Legal actions: ")[2].split() or ["none"])


def distinct(environments: Iterable[Environment]) -> list[Environment]:
    """An environment for each set of rules: the shortest name, and the last of several such names."""
    chosen: dict[str, Environment] = {}
    for each in environments:
        other = chosen.get(each.rules)
        if other is None or len(each.name) <= len(other.name):
            chosen[each.rules] = each
    return [*chosen.values()]


def suite_environments(suite: str) -> Iterable[Environment]:
    """All environments of a suite, opened where the suite is installed."""
    environments: Iterable[Environment] = _module(suite).environments()
    return environments


def suite_packages(suite: str) -> Sequence[str]:
    packages: Sequence[str] = _module(suite).PACKAGES
    return packages


def rows(path: Path) -> dict[str, dict[str, Any]]:
    """The rows of a pass, by the environments' names."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {row["name"]: row for row in map(json.loads, lines)}


def _module(suite: str) -> Any:
    """A module of suites/, a family of gymnasium's registry, or any other module by its dotted name."""
    name = suite if "." in suite else f"{SUITES}.{suite}"
    return import_module(name) if find_spec(name) else import_module(f"{SUITES}.gymnasium").Family(suite)
