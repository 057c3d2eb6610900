"""reasoning-gym: each data set is an environment of a single turn."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial
from typing import Any

import reasoning_gym
from reasoning_gym.factory import DATASETS

from benchmarks.report_card.environment import Environment, Question, random_text

PACKAGES = ["reasoning-gym"]
SIZE = 64


def environments() -> Iterator[Environment]:
    one = partial(Environment, move=random_text, least=0.0, most=1.0, seeds=SIZE, turns=1)
    for name in DATASETS:
        yield one(name=name, open=partial(opened, name), gold=partial(gold, name))


def opened(name: str) -> Question:
    dataset = reasoning_gym.create_dataset(name, seed=42, size=SIZE)

    def ask(seed: int) -> tuple[str, Any]:
        entry = dataset[seed % SIZE]
        return entry["question"], entry

    return Question(ask, lambda entry, text: dataset.score_answer(answer=text, entry=entry))


@lru_cache(maxsize=4)
def _dataset(name: str) -> Any:
    return reasoning_gym.create_dataset(name, seed=42, size=SIZE)


def gold(name: str, seed: int) -> list[str]:
    answer = _dataset(name)[seed % SIZE]["answer"]
    return [] if answer is None else [str(answer)]
