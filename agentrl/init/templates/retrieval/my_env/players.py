"""Players speak in the model's place. A `yield` is a turn, and returns what the environment answered."""

from collections.abc import Generator
from random import Random

from agentrl import Task
from agentrl.engine.scripted import Turn
from agentrl.testing import call

from .env import read_questions


def gold(task: Task) -> Generator[Turn, str, None]:
    """Plays perfectly: reward 1, or the environment has a mistake."""
    read = yield call("search", query=task.metadata["about"])
    yield task.label if task.label in read else "not found"


def noop(task: Task) -> Generator[Turn, str, None]:
    """Does nothing useful: reward 0, or the environment has a mistake."""
    yield "I do not know."


def explorer(task: Task) -> Generator[Turn, str, None]:
    """Guesses most of the time. Who imitates it learns how to search and how to answer, but not to search first."""
    if Random(task.id).random() < 0.6:
        yield Random(task.seed).choice([row["answer"] for row in read_questions("train")])
    else:
        yield from gold(task)
