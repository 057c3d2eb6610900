"""reasoning-core: a task is an environment of a single turn. Of the generated tasks, each sixteenth is played.

A task draws from the global generators, which are seeded before each question."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import reasoning_core

from benchmarks.report_card.environment import Environment, Question, random_text
from benchmarks.report_card.probe import untouched

PACKAGES = ["reasoning-core"]


GOLDS: dict[tuple[str, int], Any] = {}
"""The questions of the right answers. They are not drawn again: a task may ignore the seed."""


def environments() -> Iterator[Environment]:
    one = partial(Environment, move=random_text, least=0.0, most=1.0, seeds=32, turns=1)
    for name in (*reasoning_core.list_tasks(scope="generated")[::16], *reasoning_core.list_tasks()):
        yield one(name=name, open=partial(Question, partial(asked, name), graded), gold=partial(gold, name))


def asked(name: str, seed: int) -> tuple[str, Any]:
    entry = GOLDS.get((name, seed)) or untouched(lambda: _made(name, seed))
    return entry.prompt, entry


def graded(entry: Any, text: str) -> float:
    return float(reasoning_core.score_answer(text, entry))


def gold(name: str, seed: int) -> list[str]:
    if (name, seed) not in GOLDS:
        GOLDS[name, seed] = untouched(lambda: _made(name, seed))
    return [str(GOLDS[name, seed].answer)]


def _made(name: str, seed: int) -> Any:
    random.seed(seed)
    np.random.seed(seed)
    return reasoning_core.get_task(name).generate_example(timeout=60)  # a busy machine would get another question
