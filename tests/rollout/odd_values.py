"""Envs whose tasks hold what JSON cannot: such a task is isolated like any other, or refused in one line."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from random import Random

import numpy as np
from pydantic import BaseModel

from agentrl import Env, StepResult
from tests.rollout.odd_envs import CASES as CASES
from tests.rollout.odd_envs import case, ends, row


class Basket(BaseModel):
    items: list[str] = []


@case(lambda: row(metadata={"basket": Basket()}), ["egg"], ["Go.", "1 in it"], plain=False)
class HoldsAModel(Env):
    async def step(self, action):
        items = self.task.metadata["basket"].items
        items.append(action.content)
        return StepResult(f"{len(items)} in it", reward=float(items == ["egg"]), done=True)


@dataclass
class Robot:
    at: int = 0
    log: list[int] = field(default_factory=list)


@case(lambda: row(metadata={"robot": Robot()}), ["up", "up"], ["Go.", "at 1", "at 2"], plain=False)
class HoldsADataclass(Env):
    async def step(self, action):
        robot = self.task.metadata["robot"]
        robot.at += 1
        robot.log.append(robot.at)
        return ends(f"at {robot.at}", robot.at >= 2)

    async def score(self, trajectory):
        return float(trajectory.task.metadata["robot"].log == [1, 2])


class Door:
    """Without __eq__ and __repr__: its text holds its address."""

    def __init__(self) -> None:
        self.open = False


@case(lambda: row(metadata={"door": Door()}), ["open"], ["Go.", "it opens"], plain=False)
class HoldsAnObject(Env):
    async def step(self, action):
        door = self.task.metadata["door"]
        won, door.open = not door.open, True
        return StepResult("it opens" if won else "it is open", reward=float(won), done=True)


@case(lambda: row(metadata={"grid": np.zeros((2, 2))}), ["go"], ["Go.", "sum 4"], plain=False)
class HoldsAnArray(Env):
    async def step(self, action):
        grid = self.task.metadata["grid"]
        grid += 1
        return StepResult(f"sum {int(grid.sum())}", reward=float(grid.sum() == 4), done=True)


@case(lambda: row(metadata={"left": {"a", "b"}}), ["a", "b"], ["Go.", "1 left", "0 left"], plain=False)
class HoldsASet(Env):
    async def step(self, action):
        left = self.task.metadata["left"]
        found = action.content in left
        left.discard(action.content)
        return StepResult(f"{len(left)} left", reward=0.5 * found, done=action.content == "b")


@case(lambda: row(metadata={"queue": deque(["a", "b"]), "count": Counter()}), ["a"], ["Go.", "a 1"], plain=False)
class HoldsADeque(Env):
    async def step(self, action):
        first = self.task.metadata["queue"].popleft()
        self.task.metadata["count"][first] += 1
        won = action.content == first
        return StepResult(f"{first} {self.task.metadata['count'][first]}", reward=float(won), done=True)


@case(lambda: row(metadata={"dice": Random(7)}), ["roll"], ["Go.", f"{Random(7).random():.4f}"], plain=False)
class HoldsDice(Env):
    async def step(self, action):
        rolled = self.task.metadata["dice"].random()
        return StepResult(f"{rolled:.4f}", reward=float(rolled == Random(7).random()), done=True)


@case(lambda: row(metadata={"words": (word for word in ("a", "b"))}), ["a"], ["Say a."], plain=False)
class HoldsAGenerator(Env):
    """A generator can be neither copied nor begun again: the honest answer is a ConfigError."""

    async def reset(self, task):
        self.word = next(task.metadata["words"], "nothing")
        return f"Say {self.word}."

    async def score(self, trajectory):
        return float(trajectory.answer == self.word == "a")
