"""Players take the model's place. A `yield` is a turn, and returns the answer of the environment."""

from collections.abc import Generator
from random import Random

from agentrl import Task
from agentrl.engine.scripted import Turn
from agentrl.testing import call

from .env import DAYS

RANDOM = Random(0)


def gold(task: Task) -> Generator[Turn, str, None]:
    """Plays perfectly: reward 1, or the environment has a mistake."""
    said = yield "Which day?"
    yield call("book", day=next((day for day in DAYS if day in said), "unknown"))


def noop(task: Task) -> Generator[Turn, str, None]:
    """Does nothing useful: reward 0, or the environment has a mistake."""
    yield call("book", day="unknown")


def explorer(task: Task) -> Generator[Turn, str, None]:
    """Guesses half of the time. Imitating it teaches how to ask and book, but not to ask first."""
    if RANDOM.random() < 0.5:
        yield call("book", day=RANDOM.choice(DAYS))
    else:
        yield from gold(task)
