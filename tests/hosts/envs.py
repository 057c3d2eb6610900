"""Envs that the doors are tested with, and the turns that a host's policy takes in them."""

from __future__ import annotations

import asyncio
from random import Random

from agentrl import BadCallPolicy, Env, InfraError, Task, ToolError, tool
from agentrl.testing import call

PLACES = ["city", "town", "school", "sea", "river", "mountain", "north", "south", "east", "west"]
WEATHER = ["sunny", "rainy", "windy", "foggy"]
LONG = "It may rain and it may not. " * 8


class Weather(Env):
    """Answer a question about the weather. Only the tool knows it."""

    open = 0
    """How many Envs were reset and not yet closed."""

    @classmethod
    def tasks(cls, config, split):
        questions = [(place, weather) for weather in WEATHER for place in PLACES]
        for number, (place, weather) in enumerate(questions):
            if (number % 3 == 0) == (split == "eval"):
                metadata = {"place": place}
                yield Task(prompt=f"Weather in the {place}?", label=weather, metadata=metadata, seed=number + 1)

    def reset(self, task):
        type(self).open += 1
        self.entered = True
        return task.prompt

    @tool
    async def lookup(self, place: str) -> str:
        """Current weather of a place."""
        if place != self.task.metadata["place"]:
            raise ToolError(f"No report of {place}.")
        return f"It is {self.task.label} there."

    def score(self, trajectory):
        return float(trajectory.answer == self.task.label)

    def close(self):
        type(self).open -= getattr(self, "entered", False)


class Masks(Weather):
    """No turn with an unreadable call is trained."""

    bad_calls = BadCallPolicy(mask=True)


class TwoTools(Weather):
    """The weather is known only for the number of a place."""

    @tool
    async def number(self, place: str) -> int:
        """The number of a place."""
        return PLACES.index(place)

    @tool
    async def by_number(self, number: int) -> str:
        """The weather at a place, by its number."""
        return str(self.task.label)


class Breaks(Weather):
    """The station is down for every other question."""

    @tool
    async def lookup(self, place: str) -> str:
        """Current weather of a place."""
        if self.task.seed % 2:
            raise InfraError("the weather station is down")
        return f"It is {self.task.label} there."


class BreaksAtReset(Weather):
    def reset(self, task):
        super().reset(task)
        raise InfraError("no station")


class Buggy(Weather):
    def score(self, trajectory):
        raise KeyError("label")


class Slow(Weather):
    """The tool never answers."""

    asked: asyncio.Event

    @tool
    async def lookup(self, place: str) -> str:
        """Current weather of a place."""
        self.asked.set()
        await asyncio.Event().wait()
        return ""


def turns(task: Task, rng: Random) -> list:
    """What a policy says in an episode of any of these Envs: right and wrong calls, and answers of many kinds."""
    place, label = task.metadata["place"], task.label
    calls = [
        call("lookup", place=place),
        call("lookup", place="moon"),
        call("lookup", town=place),
        call("weather", place=place),
        call("number", place=place),
        call("by_number", number=3),
        '<tool_call>\n{"name": "lookup", "arguments": \n</tool_call>',
    ]
    return [*rng.choices(calls, k=rng.randrange(4)), rng.choice([label, "sunny", LONG, ""])]


def odd(trajectory) -> float:
    """A reward that random weights get half of the time."""
    return float(sum(trajectory.tokens) % 2)


class Duel(Weather):
    seats = ("asks", "answers")

    def observe(self, seat):
        return "Your turn."
