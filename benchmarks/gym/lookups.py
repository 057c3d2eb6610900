"""Tasks with tools: facts behind a search, a calculator that fails, a form that validates, a repair of code."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Generator, Iterable
from itertools import product
from random import Random
from typing import Any, Literal

from agentrl import Action, Env, StepResult, Task, ToolError, ToolResult, tool
from agentrl.engine import Turn
from agentrl.testing import call

Split = Literal["train", "eval"]
Player = Generator[Turn, str, None]

ANIMALS = ["dog", "cat", "bird", "fish", "horse", "cow", "sheep", "bear", "fox", "wolf", "hen", "pig"]
ASPECTS = {
    "home": ["river", "mountain", "sea", "city"],
    "food": ["paper", "water", "plant", "night"],
    "way": ["north", "south", "east", "west"],
}


def is_held_out(number: int, split: Split) -> bool:
    """Whether the task belongs to the split: each third task is held out."""
    return (number % 3 == 0) == (split == "eval")


class Facts(Env):
    """Answer a question about an animal. A search returns both a wanted fact and another one."""

    @classmethod
    def tasks(cls, config: object, split: Split) -> Iterable[Task]:
        dice = Random("facts")
        worlds = [dict(zip(ASPECTS, values, strict=True)) for values in product(*ASPECTS.values())]
        rows = [(animal, aspect, facts) for animal in ANIMALS for aspect in ASPECTS for facts in dice.sample(worlds, 6)]
        for number, (animal, aspect, facts) in enumerate(rows):
            if is_held_out(number, split):
                metadata = {"animal": animal, "aspect": aspect, "facts": facts}
                yield Task(prompt=f"What {aspect} has the {animal}?", label=facts[aspect], metadata=metadata)

    @tool
    def search(self, query: str) -> str:
        """Search the facts about an animal."""
        if query != self.task.metadata["animal"]:
            raise ToolError("No result.")
        facts = dict(self.task.metadata["facts"])
        return " ".join(f"The {aspect} is {value}." for aspect, value in facts.items())

    def score(self, trajectory: Any) -> float:
        return float(trajectory.answer == self.task.label)


def facts_gold(task: Task) -> Player:
    result = yield call("search", query=task.metadata["animal"])
    match = re.search(rf"The {task.metadata['aspect']} is (\w+)", result)
    yield match[1] if match else "unknown"


def facts_weak(task: Task) -> Player:
    """Guesses without a search, always the same, six times of ten."""
    if _dice(task).random() < 0.6:
        yield ASPECTS[task.metadata["aspect"]][0]
    else:
        yield from facts_gold(task)


class Calculator(Env):
    """Add two numbers with a calculator that is busy at each third call. A busy calculator must be called again."""

    @classmethod
    def tasks(cls, config: object, split: Split) -> Iterable[Task]:
        pairs = [(a, b) for a in range(10, 46) for b in range(3, 10)]
        for number, (a, b) in enumerate(pairs):
            if is_held_out(number + number // 7, split):
                yield Task(prompt=f"{a} and {b}?", label=str(a + b), metadata={"a": a, "b": b}, seed=number)

    def reset(self, task: Task) -> str:
        self.calls_until_ready = Random(task.seed).choice([0, 1, 1, 2])
        return str(task.prompt)

    @tool
    def add(self, a: str, b: str) -> str:
        """Add two numbers."""
        if self.calls_until_ready:
            self.calls_until_ready -= 1
            raise ToolError("Not now.")
        if not (a.isdecimal() and b.isdecimal()):
            raise ToolError("These are no numbers.")
        return f"It is {int(a) + int(b)}."

    def score(self, trajectory: Any) -> float:
        return float(trajectory.answer == self.task.label)


def calculator_gold(task: Task) -> Player:
    result = ""
    while not result.startswith("It is"):
        result = yield call("add", a=str(task.metadata["a"]), b=str(task.metadata["b"]))
    yield result.removeprefix("It is ").rstrip(".")


def calculator_weak(task: Task) -> Player:
    """Guesses after the first failure most of the time."""
    dice, result = _dice(task), ""
    while not result.startswith("It is"):
        result = yield call("add", a=str(task.metadata["a"]), b=str(task.metadata["b"]))
        if not result.startswith("It is") and dice.random() < 0.75:
            yield str(dice.randrange(13, 37))
            return
    yield result.removeprefix("It is ").rstrip(".")


CITIES = ["north", "south", "east", "west"]
DAYS = ["first", "second", "third", "fourth", "fifth"]


class Form(Env):
    """Book a journey in two steps. `start` returns a key, and `send` refuses a wrong key and a day that is full."""

    @classmethod
    def tasks(cls, config: object, split: Split) -> Iterable[Task]:
        rows = [(city, day, full) for city in CITIES for day in DAYS[:-1] for full in (False, True)]
        for number, (city, day, full) in enumerate(rows * 14):
            if is_held_out(number + number // len(rows), split):
                metadata = {"city": city, "day": day, "full": full}
                yield Task(prompt=f"Go {city}, {day} day. If full, a day later.", metadata=metadata, seed=number)

    def reset(self, task: Task) -> str:
        self.key = str(Random(f"key/{task.seed}").randrange(10, 100))
        self.is_started, self.is_sent = False, False
        return str(task.prompt)

    @property
    def day(self) -> str:
        """The right day: the wish, or the day after a full day."""
        number = DAYS.index(self.task.metadata["day"])
        return DAYS[number + 1] if self.task.metadata["full"] else DAYS[number]

    @tool(parallel=False)
    def start(self, name: str) -> str:
        """Start the form for a place."""
        if name != self.task.metadata["city"]:
            raise ToolError("No such place.")
        self.is_started = True
        return f"The key is {self.key}."

    @tool(parallel=False)
    def send(self, key: str, value: str) -> ToolResult:
        """Send the form: the key and the day."""
        if not self.is_started or key != self.key:
            raise ToolError("Not the key.")
        if value not in DAYS:
            raise ToolError(f"Use {', '.join(DAYS)}.")
        if self.task.metadata["full"] and value == self.task.metadata["day"]:
            raise ToolError("This day is full.")
        self.is_sent = value == self.day
        return ToolResult("It was sent.", done=True)

    def score(self, trajectory: Any) -> float:
        return float(self.is_sent)


def form_gold(task: Task) -> Player:
    yield from _fill(task, key_errors=0.0, gives_up=0.0)


def form_weak(task: Task) -> Player:
    """Types a wrong key one time of ten, and gives up after an error seven times of ten."""
    yield from _fill(task, key_errors=0.1, gives_up=0.7)


def _fill(task: Task, key_errors: float, gives_up: float) -> Player:
    dice = _dice(task)
    day = DAYS.index(task.metadata["day"])
    key = (yield call("start", name=task.metadata["city"])).removeprefix("The key is ").rstrip(".")
    while True:
        typed = key if dice.random() >= key_errors else str(dice.randrange(10, 100))
        result = yield call("send", key=typed, value=DAYS[day])
        if result.startswith("It was"):
            return
        if dice.random() < gives_up:
            yield "No."
            return
        day += "full" in result


OPERATORS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    ">": max,
    "<": min,
}


class Repair(Env):
    """Repair a function of one line. The tests name the first call that fails, and its value. Four versions may be
    sent."""

    @classmethod
    def tasks(cls, config: object, split: Split) -> Iterable[Task]:
        dice = Random("repair")
        for number in range(90):
            right, wrong = dice.sample(sorted(OPERATORS), 2)
            a, b = dice.sample(range(2, 6), 2)
            if len({OPERATORS[each](a, b) for each in OPERATORS}) < len(OPERATORS):
                a, b = 3, 5
            metadata = {"right": right, "wrong": wrong, "a": a, "b": b}
            if is_held_out(number, split):
                value = OPERATORS[right](a, b)
                yield Task(prompt=f"return a {wrong} b. Test: {a}, {b} is {value}.", metadata=metadata, seed=number)

    def reset(self, task: Task) -> str:
        self.versions = 0
        return str(task.prompt)

    def step(self, action: Action) -> StepResult:
        """Run the tests on a version, such as `return a + b`."""
        self.versions += 1
        match = re.fullmatch(r"return a (.) b", action.content)
        if match is None or match[1] not in OPERATORS:
            return StepResult("Error.", reward=0.0, done=self.versions == 4)
        a, b, right = (self.task.metadata[key] for key in ("a", "b", "right"))
        value, expected = OPERATORS[match[1]](a, b), OPERATORS[right](a, b)
        if value == expected:
            return StepResult("It is right.", reward=1.0, done=True)
        return StepResult(f"It is {value}, not {expected}.", reward=0.0, done=self.versions == 4)


def repair_gold(task: Task) -> Player:
    yield f"return a {task.metadata['right']} b"


def repair_weak(task: Task) -> Player:
    """Tries operators at random, also twice, and the faulty operator as well."""
    dice = _dice(task)
    for _ in range(4):
        result = yield f"return a {dice.choice(sorted(OPERATORS))} b"
        if result == "It is right.":
            return


_EPISODES: dict[str, int] = {}


def _dice(task: Task) -> Random:
    """A fresh source of chance for each demonstration of a task. The order of the demonstrations does not matter."""
    key = str(task.id or task.prompt)
    _EPISODES[key] = _EPISODES.get(key, 0) + 1
    return Random(f"{key}/{_EPISODES[key]}")
