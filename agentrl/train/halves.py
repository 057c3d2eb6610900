"""Supervised steps of a small model on a CPU: two threads, each with half of the rows.

By default torch's threads share each matrix product. For the model `tiny` this sharing costs as much time as a second
core saves, and more beside other work. So here each of two threads computes the gradient of half of the rows on a
single core, and the sum of both gradients is the gradient of all rows.
"""

from __future__ import annotations

import copy
from bisect import bisect
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

import torch

from agentrl.train.batch import Row
from agentrl.train.learner import Learner

MOST_PARAMETERS = 5_000_000
"""The size of a model up to which halves are faster. A product of larger matrices has work for several threads."""


@contextmanager
def two_halves(learner: Learner) -> Iterator[None]:
    """While the context is open, `learner.imitate` computes on two threads, if the model is small and torch may use two
    cores. The loss and the weights differ from the usual by rounding only, and repeat to the bit."""
    threads = torch.get_num_threads()
    if threads < 2 or not _is_small(learner):
        yield
        return
    torch.set_num_threads(1)  # also for the thread below, which starts afterwards
    with ThreadPoolExecutor(1, "agentrl-half") as pool:
        twin = Learner(_with_weights_of(learner.model), learner.config)

        def gradient(rows: Sequence[Row], max_tokens: int) -> float:
            first, second = halves(rows)
            other = pool.submit(twin.gradient, second, max_tokens)
            loss = learner.gradient(first, max_tokens) + other.result()
            _move_gradients(twin, learner)
            return loss

        learner.shared_gradient = gradient
        try:
            yield
        finally:
            learner.shared_gradient = None
            torch.set_num_threads(threads)


def _is_small(learner: Learner) -> bool:
    plain = learner.device.type == "cpu" and learner.model.dtype == torch.float32 and learner.vision is None
    sizes = [sum(p.numel() for p in parameters) for parameters in (learner.model.parameters(), learner.parameters)]
    return plain and sizes[0] == sizes[1] <= MOST_PARAMETERS  # adapters train a part of a larger model


def _with_weights_of(model: Any) -> Any:
    """A copy of a model that has the same weights in memory, and gradients of its own."""
    twin = copy.deepcopy(model)
    for copied, weights in zip(twin.parameters(), model.parameters(), strict=True):
        copied.data = weights.data
    return twin


def halves(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Two parts of about the same number of tokens. Rows that begin alike are neighbours, because a shared beginning is
    computed once. The second part of a single row is empty."""
    ordered = sorted(rows, key=lambda row: row.read)
    ends = list(accumulate(row.length for row in ordered))
    cut = max(1, bisect(ends, ends[-1] / 2))
    return ordered[:cut], ordered[cut:]


def _move_gradients(source: Learner, target: Learner) -> None:
    """Add the gradients of `source` to the gradients of `target`, and remove them from `source`."""
    for other, parameter in zip(source.parameters, target.parameters, strict=True):
        if other.grad is not None:
            parameter.grad = other.grad if parameter.grad is None else parameter.grad.add_(other.grad)
            other.grad = None
