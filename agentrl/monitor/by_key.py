"""Rewards by a key of the tasks' metadata, and pass@k. All have intervals from resampled tasks (bootstrap).

pass@k is the probability that at least one of k episodes of a task passes.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import comb
from statistics import fmean
from typing import TYPE_CHECKING, Any, TypeAlias

from agentrl.errors import ConfigError, did_you_mean
from agentrl.monitor.earned import rewards_of
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import JSON, Task

if TYPE_CHECKING:
    import numpy as np

    Array: TypeAlias = np.ndarray[Any, Any]

_REPLICATES = 2_000
_DRAWN_AT_ONCE = 4_000_000
"""The most random numbers drawn in a call: 32 MB."""


@dataclass(frozen=True, slots=True)
class Score:
    """A mean reward and its 95 % interval. All three are None if no episode was valid."""

    mean: float | None
    low: float | None
    high: float | None
    tasks: int
    """The number of tasks with at least one valid episode that has a reward. Only these tasks count."""
    failed: int
    """The number of failed and aborted episodes."""

    def to_json(self) -> dict[str, JSON]:
        return {"mean": self.mean, "interval": [self.low, self.high], "tasks": self.tasks, "failed": self.failed}


def value_of(task: Task, key: str) -> str:
    """The text of metadata[key] of a task. Raises ConfigError unless the value is text, a number or a boolean."""
    value = task.metadata.get(key)
    if isinstance(value, str | int | float):
        return str(value)
    problem = "no such key" if value is None else "neither text nor a number under it"
    keys = ", ".join(task.metadata) or "none"
    meant = did_you_mean(key, task.metadata.keys() - {key}, f"; its keys are: {keys}")
    raise ConfigError(f"--by {key}: the metadata of task {task.id!r} has {problem}{meant}")


def score_of(values: Sequence[float], failed: int = 0, *, seed: int = 0) -> Score:
    """The mean of `values`, which has a value for each task. The interval has the middle 95 % of the means of resampled
    tasks."""
    drawn = _drawn_means(values, (seed,))
    return Score(*_mean_and_interval([fmean(values)] if values else [], drawn), len(values), failed)


def scores_by(key: str, groups: Sequence[Sequence[Trajectory]], *, seed: int = 0) -> tuple[Mapping[str, Score], Score]:
    """The score of each value of the key, in the order of the tasks, and the average of these scores. `groups` has the
    episodes of each task, at least one.

    The reward of a task is the mean of its valid episodes. An interval has the middle 95 % of the means of resampled
    tasks. If all rewards are equal, the width of the interval is 0. The average is the unweighted mean of the scores,
    whatever the numbers of tasks. The average is None if a score is None. Raises the ConfigError of `value_of`.
    """
    import numpy as np

    by_value: dict[str, tuple[list[float], list[int]]] = {}
    for group in groups:
        earned = rewards_of(group)
        rewards, failed = by_value.setdefault(value_of(group[0].task, key), ([], []))
        rewards += [fmean(earned)] if earned else []
        failed.append(sum(not trajectory.is_valid for trajectory in group))
    drawn = {name: _drawn_means(rewards, (seed, zlib.crc32(name.encode()))) for name, (rewards, _) in by_value.items()}
    scores = {
        name: Score(*_mean_and_interval([fmean(rewards)] if rewards else [], drawn[name]), len(rewards), sum(failed))
        for name, (rewards, failed) in by_value.items()
    }
    means = [score.mean for score in scores.values() if score.mean is not None]
    together = _mean_and_interval(means if len(means) == len(scores) else [], np.mean([*drawn.values()], axis=0))
    total = [sum(getattr(score, count) for score in scores.values()) for count in ("tasks", "failed")]
    return scores, Score(*together, *total)


def _mean_and_interval(means: Sequence[float], drawn: Array) -> tuple[float | None, float | None, float | None]:
    import numpy as np

    if not means:
        return None, None, None
    low, high = np.percentile(drawn, [2.5, 97.5])
    return fmean(means), float(low), float(high)


def _drawn_means(rewards: Sequence[float], seed: Sequence[int]) -> Array:
    """The means of resamples. A resample has as many rewards as the original, drawn with replacement.

    The number of times that each reward is drawn is multinomial. Equal rewards are drawn together, so this is quick for
    rewards of 0 and 1.
    """
    import numpy as np

    if not rewards:
        return np.zeros(_REPLICATES)
    values, counts = np.unique(np.asarray(rewards, dtype=float), return_counts=True)
    random, many = np.random.default_rng(seed), max(1, _DRAWN_AT_ONCE // len(values))
    sizes = [min(many, _REPLICATES - start) for start in range(0, _REPLICATES, many)]
    share = counts / len(rewards)
    return np.concatenate([random.multinomial(len(rewards), share, size) @ values for size in sizes]) / len(rewards)


def pass_at(k: int, groups: Sequence[Sequence[Trajectory]], least: float = 1.0) -> Score:
    """The mean over tasks of the unbiased estimator of pass@k, with its interval. An episode passes with a reward of at
    least `least`.

    Only valid episodes with a reward count. A task with fewer than k such episodes is left out.
    """
    counts = [_counts(group, least) for group in groups]
    values = [estimate(n, passed, k) for n, passed in counts if n >= k]
    return score_of(values, sum(not trajectory.is_valid for group in groups for trajectory in group))


def passes(groups: Sequence[Sequence[Trajectory]], least: float = 1.0) -> Mapping[int, Score]:
    """k -> pass@k, for k = 1, 2, 4, ... up to the number of episodes of a task."""
    return {k: pass_at(k, groups, least) for k in _ks(max(map(len, groups), default=0))}


def estimate(n: int, passed: int, k: int) -> float:
    """The share of the sets of k episodes, out of n, that contain at least one of the `passed` episodes: 1 - C(n -
    passed, k) / C(n, k)."""
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
