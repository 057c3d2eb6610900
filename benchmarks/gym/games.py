"""Tasks of many turns: a number to guess, Nim against an opponent, a long way with one reward, a reward each turn."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from agentrl import Action, Env, StepResult, Task
from benchmarks.gym.lookups import Player, Split, _dice, is_held_out

NUMBERS = 15


class Guess(Env):
    """Guess a number from 1 to 15 within four turns. Halving the range always succeeds."""

    @classmethod
    def tasks(cls, config: object, split: Split) -> Iterable[Task]:
        for number in range(1, NUMBERS + 1):
            if is_held_out(number, split):
                yield Task(id=f"{split}-{number}", prompt=f"1 to {NUMBERS}?", metadata={"number": number})

    def reset(self, task: Task) -> str:
        self.turns = 0
        return str(task.prompt)

    def step(self, action: Action) -> StepResult:
        self.turns += 1
        is_last, number = self.turns == 4, self.task.metadata["number"]
        if not action.content.isdecimal():
            return StepResult("A number.", reward=0.0, done=is_last)
        if int(action.content) == number:
            return StepResult("Right.", reward=1.0, done=True)
        return StepResult("more" if int(action.content) < number else "less", reward=0.0, done=is_last)


def guess_gold(task: Task) -> Player:
    low, high = 1, NUMBERS
    while True:
        middle = (low + high) // 2
        reply = yield str(middle)
        low, high = (middle + 1, high) if reply == "more" else (low, middle - 1)


def guess_weak(task: Task) -> Player:
    """Guesses at random inside the range most of the time, else anywhere."""
    dice, low, high = _dice(task), 1, NUMBERS
    while True:
        guess = dice.randint(low, high) if dice.random() < 0.7 else dice.randint(1, NUMBERS)
        reply = yield str(guess)
        if reply == "more":
            low = max(low, guess + 1)
        elif reply == "less":
            high = min(high, guess - 1)


class Nim(Env):
    """Take 1 to 3 stones in turn. Whoever takes the last stone wins. The opponent plays well half of the time."""

    @classmethod
    def tasks(cls, config: object, split: Split) -> Iterable[Task]:
        starts = [stones for stones in range(5, 16) if stones % 4]
        for number, stones in enumerate(starts * 12):
            if is_held_out(number + number // len(starts), split):
                yield Task(id=f"{split}-{number}", prompt=f"{stones} left", metadata={"stones": stones}, seed=number)

    def reset(self, task: Task) -> str:
        self.stones, self.dice = task.metadata["stones"], Random(f"nim/{task.seed}")
        return str(task.prompt)

    def step(self, action: Action) -> StepResult:
        if action.content not in ("1", "2", "3") or int(action.content) > self.stones:
            return StepResult("Not a move.", reward=0.0, done=True)
        self.stones -= int(action.content)
        if not self.stones:
            return StepResult("You took the last.", reward=1.0, done=True)
        good = self.stones % 4
        taken = good if good and self.dice.random() < 0.5 else self.dice.randint(1, min(3, self.stones))
        self.stones -= taken
        if not self.stones:
            return StepResult("The last is away.", reward=0.0, done=True)
        return StepResult(f"{self.stones} left", reward=0.0)


def nim_gold(task: Task) -> Player:
    yield from _take(task, well=1.0)


def nim_weak(task: Task) -> Player:
    """Plays well three times of ten."""
    yield from _take(task, well=0.3)


def _take(task: Task, well: float) -> Player:
    dice, stones = _dice(task), task.metadata["stones"]
    while True:
        good = stones % 4
        taken = good if good and dice.random() < well else dice.randint(1, min(3, stones))
        reply = yield str(taken)
        if not reply.endswith("left"):
            return
        stones = int(reply.split()[0])


class Corridor(Env):
    """Fetch a key and bring it to the door within 20 turns. Only the open door is rewarded."""

    @classmethod
    def tasks(cls, config: object, split: Split) -> Iterable[Task]:
        places = [(key, door) for key in range(2, 8) for door in range(2, 8) if key + abs(key - door) <= 10]
        for number, (key, door) in enumerate((key, -door) for key, door in places if key + key + door <= 17):
            if is_held_out(number, split):
                yield Task(id=f"{split}-{number}", prompt="Find the key.", metadata={"key": key, "door": door})

    def reset(self, task: Task) -> str:
        self.place, self.has_key, self.turns = 0, False, 0
        return f"{task.prompt} {self.view()}"

    def view(self) -> str:
        """The way to the key, then the way to the door."""
        if not self.has_key:
            return "key here" if self.place == self.task.metadata["key"] else "key east"
        return "door here" if self.place == self.task.metadata["door"] else "door west"

    def step(self, action: Action) -> StepResult:
        self.turns += 1
        if action.content in ("east", "west"):
            self.place += 1 if action.content == "east" else -1
        elif action.content == "take" and self.place == self.task.metadata["key"]:
            self.has_key = True
        elif action.content == "open" and self.has_key and self.place == self.task.metadata["door"]:
            return StepResult("It is open.", reward=1.0, done=True)
        return StepResult(self.view(), reward=0.0, done=self.turns == 20)


def corridor_gold(task: Task) -> Player:
    yield from _walk(task, passes_by=0.0)


def corridor_weak(task: Task) -> Player:
    """Passes by the key six times of ten, and then never finds the door."""
    yield from _walk(task, passes_by=0.6)


def _walk(task: Task, passes_by: float) -> Player:
    view, does_pass_by = "key east", _dice(task).random() < passes_by
    while True:
        goal, place = view.split()
        action = {"here": "take" if goal == "key" else "open"}.get(place, place)
        if does_pass_by and action == "take":
            action = "east"
        view = yield action
        view = " ".join(view.split()[-2:])


class Harvest(Env):
    """Take from the larger of two fields, eight times. Each right turn is rewarded at once."""

    TURNS = 8

    @classmethod
    def tasks(cls, config: object, split: Split) -> Iterable[Task]:
        for number in range(60):
            if is_held_out(number, split):
                yield Task(id=f"{split}-{number}", prompt="Take one.", seed=number)

    def reset(self, task: Task) -> str:
        self.dice, self.turns = Random(f"harvest/{task.seed}"), 0
        return f"{task.prompt} {self.view()}"

    def view(self) -> str:
        """Two fields with different values."""
        self.north, self.south = self.dice.sample(range(1, 10), 2)
        return f"north {self.north}, south {self.south}"

    def step(self, action: Action) -> StepResult:
        self.turns += 1
        larger = "north" if self.north > self.south else "south"
        reward = float(action.content == larger) / self.TURNS
        return StepResult(self.view(), reward=reward, done=self.turns == self.TURNS)


def harvest_gold(task: Task) -> Player:
    yield from _harvest(task, well=1.0)


def harvest_weak(task: Task) -> Player:
    """Takes the larger field three times of ten, else a random field."""
    yield from _harvest(task, well=0.3)


def _harvest(task: Task, well: float) -> Player:
    dice, first = _dice(task), Random(f"harvest/{task.seed}").sample(range(1, 10), 2)
    north, south = first
    while True:
        action = "north" if north > south else "south"
        reply = yield action if dice.random() < well else dice.choice(["north", "south"])
        words = reply.replace(",", "").split()
        north, south = int(words[1]), int(words[3])
