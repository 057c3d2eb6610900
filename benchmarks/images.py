"""What the pixels of twenty screenshots cost: `python -m benchmarks.images`. CPU seconds, megabytes, no model.

The image processor is Qwen3-VL's, with its own bounds on pixels. On a busy machine CPU seconds count the waits for
memory and for the other half of a core, too: so the best of some conversions is printed.
"""

from __future__ import annotations

import json
import resource
import time

import torch
from PIL import Image as Pillow
from PIL import ImageDraw

from agentrl.image import Image
from agentrl.models.vision import Vision
from tests import tiny_vlm

COUNT, SIZE, TRIES = 20, (1920, 1080), 5


def screenshot(number: int) -> Image:
    page = Pillow.new("RGB", SIZE, (number * 10, 200, 255 - number * 10))
    draw = ImageDraw.Draw(page)
    for i in range(200):
        draw.text(((i * 97) % 1800, (i * 53) % 1000), f"word {i} of page {number}", fill=(i, 0, 0))
    return Image.from_pil(page)


def main() -> None:
    folder = tiny_vlm.folder("qwen3_vl")
    settings = folder / "preprocessor_config.json"
    bounds = {"size": {"shortest_edge": 65_536, "longest_edge": 16_777_216}}
    settings.write_text(json.dumps({**json.loads(settings.read_text()), **bounds}))
    vision, pages = Vision(folder), [screenshot(number) for number in range(COUNT)]
    torch.set_num_threads(1)
    vision.tensors(pages[:1])
    before, spent = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, list[tuple[float, float]]()
    for _ in range(TRIES):
        wall, cpu, pixels = time.monotonic(), time.process_time(), None  # the last ones are given back first
        pixels = vision.tensors(pages)["pixel_values"]
        spent.append((time.process_time() - cpu, time.monotonic() - wall))
    cpu, wall = min(spent)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(f"{COUNT} screenshots of {SIZE[0]} x {SIZE[1]}: {vision.count(pages[0])} tokens each")
    print(f"files {sum(page.size for page in pages) / 1e6:.1f} MB, pixels {pixels.nbytes / 1e6:.0f} MB in bfloat16")
    print(f"conversion {cpu:.2f} s of CPU, {wall:.2f} s of the clock; peak memory grew by {grown:.0f} MB")


if __name__ == "__main__":
    main()
