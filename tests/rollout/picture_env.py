# ruff: noqa: ASYNC240 - files are how processes tell a test what they do
"""An Env that shows images, which workers find by its path."""

import os
import random
import signal
from pathlib import Path

from PIL import Image as Pillow

from agentrl import Env, Image, StepResult, TurnOptions


def noise(seed: int, width: int = 90, height: int = 60) -> Image:
    return Image.from_pil(Pillow.frombytes("RGB", (width, height), random.Random(seed).randbytes(3 * width * height)))


def damaged() -> Image:
    """A file that ends after its first kilobytes."""
    return Image.of(noise(3).data[:4000])


def bomb() -> Image:
    """A small file that claims 900 million pixels."""
    data = bytearray(noise(4).data)
    data[16:24] = (30_000).to_bytes(4) * 2
    return Image.of(bytes(data))


class Shown(Env):
    """An image in the prompt, and another one after the first turn."""

    turn_options = TurnOptions(stop=tuple("aeiou"))  # else a random model would never end its turn
    deterministic = True

    async def reset(self, task):
        self.turn = 0
        return [{"role": "user", "content": ["Look.", noise(0)]}]

    async def step(self, action):
        self.turn += 1
        if self.turn > 2:
            return StepResult(done=True)
        does = self.task.metadata.get("does")
        if does == "die once" and self.turn == 2 and not (mark := Path(self.task.metadata["mark"])).exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        shown = {"damaged": damaged, "bomb": bomb}.get(str(does), lambda: noise(self.turn))()
        return StepResult([{"role": "user", "content": ["And now?", shown]}])

    def score(self, trajectory):
        return 1.0
