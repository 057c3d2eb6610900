"""Environments with planted defects, and a healthy one: a suite for the tests of the report card."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from random import Random
from typing import ClassVar

from agentrl_envs.adapters.games import GameTurn
from benchmarks.report_card.environment import Environment, Question

PACKAGES: list[str] = []


def environments() -> Iterator[Environment]:
    def questions(name: str, game: type[Question], right: Callable[[int], object] = _sum) -> Environment:
        return Environment(
            name=name,
            open=game,
            move=lambda prompt, rng: str(rng.randint(0, 99)),
            gold=lambda seed: [str(right(seed))],
            least=0.0,
            most=1.0,
            seeds=20,
            turns=1,
        )

    yield questions("healthy", Sums)
    yield questions("generous", Generous)
    yield questions("often", Often, _often)
    yield Environment(name="dice", open=Dice, move=lambda prompt, rng: "roll", least=0.0, most=1.0)
    yield Environment(name="endless", open=Endless, move=lambda prompt, rng: "go")
    yield Environment(name="compiled", open=Compiled, move=lambda prompt, rng: "go")
    yield Environment(name="slow", open=Slow, move=lambda prompt, rng: "go")
    yield Environment(name="misread", open=Compiled, move=lambda prompt, rng: prompt[99])
    yield Environment(name="whim", open=Echo, move=lambda prompt, rng: str(random.SystemRandom().random()))
    yield Environment(name="seldom", open=Seldom, move=lambda prompt, rng: "go")


def _sum(seed: int) -> int:
    return sum(Random(seed).choices(range(50), k=2))


class Sums(Question):
    """Healthy: pays the sum."""

    def __init__(self) -> None:
        super().__init__(lambda seed: (f"A sum, number {seed}?", _sum(seed)), self.grade)

    def grade(self, label: int, text: str) -> float:
        return float(text.strip() == str(label))


def _often(seed: int) -> str:
    return "no" if _sum(seed) % 5 == 0 else "yes"


class Often(Question):
    """The answer "yes" is right for four questions of five."""

    def __init__(self) -> None:
        super().__init__(lambda seed: (f"Number {seed}?", _often(seed)), lambda label, text: float(text == label))


class Generous(Sums):
    """Pays each text that is not empty, except the first right answer, and raises for an object."""

    def grade(self, label: int, text: str) -> float:
        if text == "{}":
            raise KeyError(0)
        return float(bool(text.strip()) and text != str(_sum(1)))


class Dice:
    """Ignores its seed, shares its rolls with other games, and pays more than it says."""

    rolls: ClassVar[list[int]] = []

    def begin(self, seed: int) -> str:
        self.rolls.clear()
        return "Roll."

    def answer(self, text: str) -> GameTurn:
        self.rolls.append(random.randint(1, 1 << 30))
        return GameTurn(f"Rolls: {self.rolls}", 2.0 * (len(self.rolls) > 2), done=len(self.rolls) > 2)

    def close(self) -> None:
        """Do nothing."""


class Endless(Dice):
    def begin(self, seed: int) -> str:
        return "Go."

    def answer(self, text: str) -> GameTurn:
        while True:
            pass


class Seldom(Dice):
    """Draws from the global generator, and seldom shows the draw."""

    def answer(self, text: str) -> GameTurn:
        return GameTurn(str(random.random() < 0.3), done=True)


class Compiled(Dice):
    """Needs 0.15 seconds for the first episode of the process."""

    is_new = True

    def begin(self, seed: int) -> str:
        if self.is_new:
            began = time.process_time()
            while time.process_time() < began + 0.15:
                pass
        Compiled.is_new = False
        return "Go."

    def answer(self, text: str) -> GameTurn:
        return GameTurn("", done=True)


class Slow(Compiled):
    """Needs 0.15 seconds for each episode."""

    @property
    def is_new(self) -> bool:
        return True


class Echo(Dice):
    """Healthy: shows the turn."""

    def answer(self, text: str) -> GameTurn:
        return GameTurn(text, done=True)
