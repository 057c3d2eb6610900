"""pass@k: the probability that at least one of k episodes of a task passes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import comb

from agentrl.monitor.by_key import Score, score_of
from agentrl.monitor.earned import rewards_of
from agentrl.trajectory.trajectory import Trajectory


def pass_at(k: int, groups: Sequence[Sequence[Trajectory]], least: float = 1.0) -> Score:
    """The mean over tasks of the unbiased estimator of pass@k, with the interval. An episode passes with a reward of at
    least `least`.

    Only valid, scored episodes count. A task with fewer than k such episodes is left out.
    """
    counts = [_counts(group, least) for group in groups]
    values = [estimate(n, passed, k) for n, passed in counts if n >= k]
    return score_of(values, sum(not trajectory.is_valid for group in groups for trajectory in group))


def passes(groups: Sequence[Sequence[Trajectory]], least: float = 1.0) -> Mapping[int, Score]:
    """pass@k for k = 1, 2, 4, ... up to the samples of a task."""
    return {k: pass_at(k, groups, least) for k in _ks(max(map(len, groups), default=0))}


def estimate(n: int, passed: int, k: int) -> float:
    """1 - C(n - passed, k) / C(n, k): the share of sets of k out of n episodes with at least one passed episode."""
    return 1.0 - comb(n - passed, k) / comb(n, k)


def _counts(group: Sequence[Trajectory], least: float) -> tuple[int, int]:
    rewards = rewards_of(group)
    return len(rewards), sum(reward >= least for reward in rewards)


def _ks(samples: int) -> Iterator[int]:
    k = 1
    while k < samples:
        yield k
        k *= 2
    if samples:
        yield samples
