"""Two Envs for models that read images: a shop whose pages are screenshots, and a chart that is asked about."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count, islice
from random import Random
from typing import Literal

from pictures import LINES, bars, chart, page, prices

from agentrl import Action, Env, Image, Message, StepResult, Task, ToolError, Trajectory, tool

HELD_OUT = 1_000_000
"""The first seed of held-out tasks."""


def seeds(split: Literal["train", "eval"]) -> Iterable[int]:
    return islice(count(HELD_OUT if split == "eval" else 0), 10_000 if split == "train" else 200)


class Pages(Env):
    """What does an item cost? The shop has several pages, and the model sees the one that it has opened last."""

    @classmethod
    def tasks(cls, config: object, split: Literal["train", "eval"], /) -> Iterable[Task]:
        for seed in seeds(split):
            shop = prices(seed)
            item = Random(seed).choice(list(shop))
            ask = f"What is the price of {item}, in EUR? Open the pages of the shop, then answer with the number alone."
            yield Task(id=f"page-{seed}", prompt=ask, label=str(shop[item]), metadata={"seed": seed, "item": item})

    async def reset(self, task: Task) -> list[Message]:
        self.shop = prices(int(task.metadata["seed"]))
        return [{"role": "user", "content": [str(task.prompt), page(self.shop, 0)]}]

    @tool
    async def open_page(self, number: int) -> list[str | Image]:
        """Open a page of the shop. The first one is 1."""
        pages = len(self.shop) // LINES
        if not 1 <= number <= pages:
            raise ToolError(f"the shop has the pages 1 to {pages}")
        return [f"Page {number}:", page(self.shop, number - 1)]

    def score(self, trajectory: Trajectory) -> float:
        return float(trajectory.answer.strip() == self.task.label)


class Charts(Env):
    """Which bar is the tallest, and what is its value? Each right answer is half of the reward."""

    @classmethod
    def tasks(cls, config: object, split: Literal["train", "eval"], /) -> Iterable[Task]:
        return (Task(id=f"chart-{seed}", metadata={"seed": seed}) for seed in seeds(split))

    async def reset(self, task: Task) -> list[Message]:
        heights = bars(int(task.metadata["seed"]))
        tallest = max(heights, key=lambda name: heights[name])
        self.answers, self.right = [tallest, str(heights[tallest])], 0
        return [{"role": "user", "content": [chart(heights), "Which colour is the tallest bar? Answer with one word."]}]

    async def step(self, action: Action) -> StepResult:
        if action.content.strip() != self.answers[self.right]:
            return StepResult(done=True)
        self.right += 1
        return StepResult("And its value? Answer with the number alone.", done=self.right == len(self.answers))

    def score(self, trajectory: Trajectory) -> float:
        return self.right / len(self.answers)
