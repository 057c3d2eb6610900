"""Players take the model's place. A `yield` is a turn, and returns the answer of the environment."""

from collections.abc import Generator
from random import Random

from agentrl import Task
from agentrl.engine.scripted import Turn
from agentrl.testing import call

from .env import read_questions

RANDOM = Random(0)


def gold(task: Task) -> Generator[Turn, str, None]:
    """Plays perfectly: reward 1, or the environment has a mistake."""
    read = yield call("search", query=task.metadata["about"])
    yield task.label if task.label.lower() in read else "Not found."


def noop(task: Task) -> Generator[Turn, str, None]:
    """Does nothing useful: reward 0, or the environment has a mistake."""
    yield "I do not know."


def explorer(task: Task) -> Generator[Turn, str, None]:
    """Guesses half of the time. Imitating it teaches how to search and answer, but not to search first."""
    if RANDOM.random() < 0.5:
        yield RANDOM.choice([row["answer"] for row in read_questions("train")])
    else:
        yield from gold(task)
