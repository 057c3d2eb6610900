"""A picture in one colour, and the question for its name: what a model must see, it learns by reward alone."""

from __future__ import annotations

import random
from collections.abc import Generator, Iterable
from typing import Literal

from PIL import Image as Pillow

from agentrl import Env, Image, Message, StepResult, Task, Trajectory
from agentrl.types import Action

COLOURS = {
    "red": (205, 40, 40),
    "green": (40, 165, 60),
    "blue": (45, 70, 205),
    "yellow": (225, 205, 45),
    "white": (225, 225, 225),
    "black": (30, 30, 30),
}
_TRAINED, _HELD_OUT = 2000, 300


class Colours(Env):
    """Name the colour of a picture. The reward is 1 for a first turn that has only the right name."""

    deterministic = True

    @classmethod
    def tasks(cls, config: object, split: Literal["train", "eval"]) -> Iterable[Task]:
        """The tasks of a split. Each task has a different shade and noise, so training shows no held-out picture."""
        first, count = (0, _TRAINED) if split == "train" else (_TRAINED, _HELD_OUT)
        for number in range(first, first + count):
            yield Task(id=f"{split}/{number}", label=random.Random(f"colour/{number}").choice(list(COLOURS)))

    async def reset(self, task: Task) -> list[Message]:
        return [{"role": "user", "content": [picture(task), "Which color?"]}]

    async def step(self, action: Action) -> StepResult:
        return StepResult(done=True)

    def score(self, trajectory: Trajectory) -> float:
        return float(trajectory.actions[-1].content.strip() == self.task.label)


def picture(task: Task) -> Image:
    """The picture of a task: 64 x 64 pixels in a shade of the task's colour, with noise."""
    chance = random.Random(f"picture/{task.id}")
    shade = [channel + chance.randint(-25, 25) for channel in COLOURS[str(task.label)]]
    pixels = bytes(max(0, min(255, round(chance.gauss(shade[i % 3], 12)))) for i in range(3 * 64 * 64))
    return Image.from_pil(Pillow.frombytes("RGB", (64, 64), pixels))


def guessing(task: Task) -> Generator[str]:
    """A player that names a random colour. Its episodes teach the format of an answer."""
    yield random.Random(f"guess/{task.id}").choice(list(COLOURS))
