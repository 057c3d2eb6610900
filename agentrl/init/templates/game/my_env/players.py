"""Players take the model's place. A `yield` is a turn, and returns the answer of the environment."""

from collections.abc import Generator
from random import Random

from agentrl import Task
from agentrl.engine.scripted import Turn

from .env import MOVES, STEPS, treasure_of, way


def gold(task: Task) -> Generator[Turn, str, None]:
    """Plays perfectly: reward 1, or the environment has a mistake."""
    yield from _walk(task, astray=0.0)


def noop(task: Task) -> Generator[Turn, str, None]:
    """Does nothing useful: reward 0, or the environment has a mistake."""
    for _ in range(STEPS):
        yield "I stay."


def explorer(task: Task) -> Generator[Turn, str, None]:
    """Goes north most of the time. Imitating it teaches what a move is, but not to follow the map."""
    yield from _walk(task, astray=0.6)


def _walk(task: Task, astray: float) -> Generator[Turn, str, None]:
    here, treasure, random = (0, 0), treasure_of(task.seed), Random(task.seed)
    for _ in range(STEPS):
        move = "north" if random.random() < astray else way(here, treasure)
        yield move
        here = here[0] + MOVES[move][0], here[1] + MOVES[move][1]
        if here == treasure:
            return
