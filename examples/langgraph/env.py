"""The graph as an environment: its tasks, its run-time context, and its reward."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from random import Random

from graph import Station, graph

from agentrl import Task, Trajectory
from agentrl.engine.scripted import Turn
from agentrl.testing import call
from agentrl_envs.agents import LangGraph

PLACES = ["city", "town", "school", "sea", "river", "mountain", "north", "south", "east", "west"]
WEATHER = ["sunny", "rainy", "windy", "foggy"]
RANDOM = Random(0)


class Assistant(LangGraph):
    """Answer a question about the weather, which only the graph's tool knows."""

    @classmethod
    def tasks(cls, config: None, split: str) -> Iterator[Task]:
        """Every third question is held out."""
        questions = [(place, weather) for weather in WEATHER for place in PLACES]
        for number, (place, weather) in enumerate(questions):
            if (number % 3 == 0) == (split == "eval"):
                yield Task(prompt=f"Weather in the {place}?", label=weather, metadata={"place": place})

    def graph(self, task: Task, model: object) -> object:
        return graph  # it takes its model from the configuration that it is called with

    def context(self, task: Task) -> Station:
        return Station({task.metadata["place"]: f"It is {task.label} there."})

    def score(self, trajectory: Trajectory) -> float:
        return float(self.result == self.task.label)


def gold(task: Task) -> Generator[Turn, str, None]:
    """Plays perfectly."""
    read = yield call("lookup", place=task.metadata["place"])
    yield next(word for word in WEATHER if word in read)


def explorer(task: Task) -> Generator[Turn, str, None]:
    """Guesses in three of four episodes. Imitation teaches how to look up and answer, but not to look up first."""
    if RANDOM.random() < 0.75:
        yield RANDOM.choice(WEATHER)
    else:
        yield from gold(task)
