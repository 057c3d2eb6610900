"""Images of noise."""

from __future__ import annotations

import random

from PIL import Image as Pillow

from agentrl import Image


def noise(width: int, height: int, seed: int) -> Image:
    return Image.from_pil(Pillow.frombytes("RGB", (width, height), random.Random(seed).randbytes(3 * width * height)))


A, B, C = noise(120, 90, 0), noise(200, 70, 1), noise(60, 130, 2)
