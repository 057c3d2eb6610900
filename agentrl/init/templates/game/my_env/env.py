"""The environment: a game in which the model's text is the move."""

from collections.abc import Iterable
from random import Random
from typing import Any, Literal

from agentrl import Action, Env, StepResult, Task

MOVES = {"north": (0, 1), "south": (0, -1), "east": (1, 0), "west": (-1, 0)}
STEPS = 6


def treasure_of(seed: int) -> tuple[int, int]:
    """Where the treasure lies, two or three steps from the start."""
    return Random(seed).choice([(x, y) for x in range(-3, 4) for y in range(-3, 4) if abs(x) + abs(y) in (2, 3)])


def way(here: tuple[int, int], there: tuple[int, int]) -> str:
    """The move that is best now."""
    (x, y), (to_x, to_y) = here, there
    if x != to_x:
        return "east" if to_x > x else "west"
    return "north" if to_y > y else "south"


class MyEnv(Env):
    """Find a treasure within six steps. A map shows where to go."""

    deterministic = True  # the same moves always lead to the same place

    @classmethod
    def tasks(cls, config: Any, split: Literal["train", "eval"]) -> Iterable[Task]:
        """Endless tasks. The seed determines where the treasure lies."""
        random = Random(split)
        while True:
            yield Task(prompt="Find the treasure.", seed=random.getrandbits(32))

    def reset(self, task: Task) -> str:
        self.here, self.treasure, self.steps = (0, 0), treasure_of(task.seed), 0
        return f"{task.prompt} {self.map()}"

    def map(self) -> str:
        return f"It is {way(self.here, self.treasure)} from here."

    def step(self, action: Action) -> StepResult:
        """One move. The rewards of the steps add up to the reward of the episode."""
        move = MOVES.get(action.content)
        if move is not None:
            self.here = self.here[0] + move[0], self.here[1] + move[1]
        self.steps += 1
        if self.here == self.treasure:
            return StepResult("Here it is.", reward=1.0, done=True)
        told = self.map() if move is not None else f"Say one of {', '.join(MOVES)}."
        return StepResult(told, reward=0.0, done=self.steps == STEPS)
