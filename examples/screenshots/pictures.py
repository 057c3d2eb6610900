"""Pages and charts, drawn by pillow from a seed: no browser is needed, and each seed gives the same pixels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from PIL import Image as Pillow
from PIL import ImageDraw, ImageFont

from agentrl import Image

WIDTH, HEIGHT, ROW = 320, 200, 24
COLOURS = {"red": "#d62728", "green": "#2ca02c", "blue": "#1f77b4", "orange": "#ff7f0e", "purple": "#9467bd"}
ITEMS = ("bread", "cheese", "grapes", "honey", "lemons", "olives", "pears", "rice", "salt", "tea", "walnuts", "yeast")
LINES = 4
"""The number of items on a page."""


def prices(seed: int) -> dict[str, int]:
    """The items of a shop with their prices, in the order of its pages."""
    chance = Random(seed)
    return {item: chance.randrange(2, 100) for item in chance.sample(ITEMS, 3 * LINES)}


def page(shop: Mapping[str, int], number: int) -> Image:
    """The picture of a page of a shop, as a browser would show it. `number` counts from 0."""
    picture, draw, font = _blank()
    listed = list(shop.items())
    draw.rectangle((0, 0, WIDTH, ROW), fill="#333333")
    draw.text((8, 5), f"Shop   page {number + 1} of {len(listed) // LINES}", fill="white", font=font)
    for line, (item, price) in enumerate(listed[number * LINES : (number + 1) * LINES]):
        top = 2 * ROW + line * (ROW + 8)
        draw.text((16, top), item, fill="black", font=font)
        draw.text((WIDTH - 60, top), f"{price} EUR", fill="black", font=font)
        draw.line((8, top + ROW, WIDTH - 8, top + ROW), fill="#cccccc")
    return Image.from_pil(picture)


def bars(seed: int) -> dict[str, int]:
    """The bars of a chart: colour -> height. All heights differ, and the order is random."""
    chance = Random(seed)
    names = chance.sample(list(COLOURS), len(COLOURS))
    return dict(zip(names, chance.sample(range(10, 100, 10), len(names)), strict=True))


def chart(heights: Mapping[str, int]) -> Image:
    """The picture of a chart with a bar of each colour."""
    picture, draw, font = _blank()
    step, floor = WIDTH // (len(heights) + 1), HEIGHT - ROW
    draw.line((8, floor, WIDTH - 8, floor), fill="black")
    for place, (name, height) in enumerate(heights.items(), 1):
        left = place * step - step // 4
        draw.rectangle((left, floor - height * 1.5, left + step // 2, floor), fill=COLOURS[name])
        draw.text((left, floor + 4), str(height), fill="black", font=font)
    return Image.from_pil(picture)


def _blank() -> Sequence[object]:
    picture = Pillow.new("RGB", (WIDTH, HEIGHT), "white")
    return picture, ImageDraw.Draw(picture), ImageFont.load_default(size=14)
