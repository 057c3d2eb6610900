"""reasoning-core: each task is an environment of a single turn. A task draws from the global generators,
which are seeded before each question."""

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


def environments() -> Iterator[Environment]:
    for name in reasoning_core.list_tasks():
        yield Environment(
            name=name,
            open=partial(opened, name),
            move=random_text,
            gold=partial(gold, name),
            least=0.0,
            most=1.0,
            seeds=32,
            turns=1,
        )


def opened(name: str) -> Question:
    def ask(seed: int) -> tuple[str, Any]:
        entry = _GOLDS.get((name, seed)) or untouched(lambda: _made(name, seed))
        return entry.prompt, entry

    return Question(ask, lambda entry, text: float(reasoning_core.score_answer(text, entry)))


def gold(name: str, seed: int) -> list[str]:
    """The answer of a question, which is not drawn again: a task may ignore its seed."""
    if (name, seed) not in _GOLDS:
        _GOLDS[name, seed] = untouched(lambda: _made(name, seed))
    return [str(_GOLDS[name, seed].answer)]


_GOLDS: dict[tuple[str, int], Any] = {}


def _made(name: str, seed: int) -> Any:
    random.seed(seed)
    np.random.seed(seed)
    return reasoning_core.get_task(name).generate_example()
