"""Scripted players that know the content of the images, and a player that guesses."""

from __future__ import annotations

from collections.abc import Generator

from pictures import LINES, bars, prices

from agentrl import Task
from agentrl.engine.scripted import Turn
from agentrl.testing import call


def shopper(task: Task) -> Generator[Turn, str, None]:
    """Opens pages until a page has the item, then answers."""
    shop = prices(int(task.metadata["seed"]))
    for number in range(1, list(shop).index(str(task.metadata["item"])) // LINES + 1):
        yield call("open_page", number=number + 1)
    yield str(task.label)


def reader(task: Task) -> Generator[Turn, str, None]:
    """Answers both questions on the chart."""
    heights = bars(int(task.metadata["seed"]))
    tallest = max(heights, key=lambda name: heights[name])
    yield tallest
    yield str(heights[tallest])


def blind(task: Task) -> Generator[Turn, str, None]:
    """Guesses an answer."""
    yield "red"
    yield "50"
