"""Players take the model's place. A `yield` is a turn, and returns the answer of the environment."""

from collections.abc import Generator
from random import Random

from agentrl import Task
from agentrl.engine.scripted import Turn
from agentrl.testing import call

from .env import WEATHER

RANDOM = Random(0)


def gold(task: Task) -> Generator[Turn, str, None]:
    """Plays perfectly: reward 1, or the environment has a mistake."""
    read = yield call("lookup", place=task.metadata["place"])
    yield next(word for word in WEATHER if word in read)


def noop(task: Task) -> Generator[Turn, str, None]:
    """Does nothing useful: reward 0, or the environment has a mistake."""
    yield "I do not know."


def explorer(task: Task) -> Generator[Turn, str, None]:
    """Guesses three times of four. Imitating it teaches how to look and answer, but not to look first."""
    if RANDOM.random() < 0.75:
        yield RANDOM.choice(WEATHER)
    else:
        yield from gold(task)
