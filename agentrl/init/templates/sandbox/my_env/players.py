"""Players take the model's place. A `yield` is a turn, and returns the answer of the environment."""

from collections.abc import Generator
from random import Random

from agentrl import Task
from agentrl.engine.scripted import Turn
from agentrl.testing import call

RANDOM = Random(0)


def gold(task: Task) -> Generator[Turn, str, None]:
    """Plays perfectly: reward 1, or the environment has a mistake."""
    command = {"file": "touch", "folder": "mkdir"}[task.metadata["kind"]]
    yield call("bash", command=f"{command} {task.metadata['name']}")
    yield "Done."


def noop(task: Task) -> Generator[Turn, str, None]:
    """Does nothing useful: reward 0, or the environment has a mistake."""
    yield "Done."


def explorer(task: Task) -> Generator[Turn, str, None]:
    """Tries any command. Imitating it teaches to write commands, but not which one helps."""
    yield call("bash", command=f"{RANDOM.choice(['touch', 'mkdir', 'ls'])} {task.metadata['name']}")
    yield "Done."
