"""Players take the model's place. A `yield` is a turn, and returns the answer of the environment."""

from collections.abc import Generator
from random import Random

from agentrl import Task
from agentrl.engine.scripted import Turn

from .env import read_questions

RANDOM = Random(0)


def gold(task: Task) -> Generator[Turn, str, None]:
    """Plays perfectly: reward 1, or the environment has a mistake."""
    (right,) = task.label["ground_truth"]["target"]
    read = yield f"<search>{task.metadata['about']}</search>"
    yield f"<answer>{right if right.lower() in read.lower() else 'not found'}</answer>"


def noop(task: Task) -> Generator[Turn, str, None]:
    """Does nothing useful: reward 0, or the environment has a mistake."""
    yield "<answer>unknown</answer>"


def explorer(task: Task) -> Generator[Turn, str, None]:
    """Guesses half of the time. Imitating it teaches how to search and answer, but not to search first."""
    if RANDOM.random() < 0.5:
        guess = RANDOM.choice([row["golden_answers"][0] for row in read_questions("train")])
        yield f"<answer>{guess}</answer>"
    else:
        yield from gold(task)
