"""Whether a warm start has memorised the demonstrations: the loss of a few held-out demonstrations shows this."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import fmean

from agentrl.monitor.canaries import learned_by_heart
from agentrl.train.config import TrainConfig, WarmStartConfig
from agentrl.train.learner import Learner, Update
from agentrl.train.warm_start import Demonstration, Demonstrations, weighted_rows

_SHARE, _MOST, _LEAST = 0.05, 32, 8
"""The share of held-out demonstrations, the most and the fewest. Below the fewest, none is held out."""
_PASSES = 1.5
"""Number of passes below which a warm start cannot memorise the demonstrations."""


def keep_apart(
    demonstrations: Sequence[Demonstration], config: WarmStartConfig, seed: int
) -> tuple[list[Demonstration], list[Demonstration]]:
    """The demonstrations to learn, in order, and a few held-out demonstrations. Demonstrations of the same prompt stay
    together."""
    few = min(_MOST, int(_SHARE * len(demonstrations)))
    if few < _LEAST or passes(len(demonstrations), config) < _PASSES:
        return list(demonstrations), []
    prompts = [tuple(d.tokens[: d.mask.index(1)]) for d in demonstrations]
    in_order = sorted(set(prompts))
    random.Random(f"{seed}/kept apart").shuffle(in_order)
    apart: set[tuple[int, ...]] = set()
    while in_order and sum(prompt in apart for prompt in prompts) < few:
        apart.add(in_order.pop())
    sides: tuple[list[Demonstration], list[Demonstration]] = ([], [])
    for prompt, demonstration in zip(prompts, demonstrations, strict=True):
        sides[prompt in apart].append(demonstration)
    # With few prompts, what is kept apart could be most of the file.
    return sides if len(sides[1]) <= 2 * few else (list(demonstrations), [])


def passes(demonstrations: int, config: WarmStartConfig) -> float:
    """How often the warm start reads each demonstration."""
    return config.steps * config.batch_size / max(demonstrations, 1)


def warnings_by_heart(learner: Learner, demonstrations: Demonstrations, config: TrainConfig) -> Iterator[str]:
    """A warning if learned demonstrations have a far lower loss than the same number of held-out demonstrations."""
    if not demonstrations.apart or config.warm_start is None:
        return
    learned = random.Random(f"{config.seed}/learned").sample(
        demonstrations.rows, min(len(demonstrations.apart), len(demonstrations.rows))
    )
    if warning := learned_by_heart(_losses(learner, learned), _losses(learner, demonstrations.apart)):
        read = passes(len(demonstrations.rows), config.warm_start)
        yield (
            f"{warning}; it was read {read:.1f} times: take fewer warm_start.steps or more demonstrations, and train "
            "on tasks that they do not show"
        )


def _losses(learner: Learner, demonstrations: Sequence[Demonstration]) -> list[float]:
    """The mean loss of the imitated tokens of each, in no order."""
    rows = [replace(row, log_probs=[0.0] * len(row.positions)) for row in weighted_rows(demonstrations, 0.0)]
    return [-fmean(row.log_probs) for row in learner.apply_tis(rows, 1.0, Update(0.0))]
