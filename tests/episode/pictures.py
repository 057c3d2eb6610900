"""Small images, and an Env that shows them."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image as Pillow

from agentrl import (
    Env,
    Image,
    StepResult,
    tool,
)
from agentrl.testing import call


def picture(width: int, height: int, seed: int = 0, kind: str = "PNG") -> Image:
    pixels = np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8)
    written = io.BytesIO()
    Pillow.fromarray(pixels).save(written, format=kind)
    return Image.of(written.getvalue())


A, B, C = picture(120, 90), picture(200, 70, 1), picture(60, 130, 2)


class Screens(Env):
    """Shows an image in the prompt, from a tool, and in an observation of its own."""

    async def reset(self, task):
        self.steps = 0
        return [{"role": "user", "content": ["Open the page.", A]}]

    @tool
    async def screenshot(self) -> object:
        """The page as it is."""
        return ["here it is:", B, "(seen)"]

    async def step(self, action):
        self.steps += 1
        if self.steps == 2:
            return StepResult([{"role": "user", "content": [C, "Which colour?"]}])
        return await super().step(action)

    def score(self, trajectory):
        return 1.0


SCRIPT = [call("screenshot"), "I see it.", "red"]
