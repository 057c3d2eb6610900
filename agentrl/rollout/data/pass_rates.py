"""The choice of tasks by the rewards of their groups so far: a window of pass rates, and a curriculum."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from agentrl.errors import ConfigError
from agentrl.monitor.earned import rewards_of
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import JSON, Task

_MOST_LEVELS = 10
_EVIDENCE = 16
"""Number of a level's latest groups. Their mean pass rate decides whether the next level begins."""


def pass_rate(group: Sequence[Trajectory]) -> float | None:
    """The mean reward of a group's valid episodes, each cut to 0 to 1. With rewards of 0 and 1, the share of passes.

    None without a reward.
    """
    rewards = rewards_of(group)
    return statistics.fmean(min(max(reward, 0.0), 1.0) for reward in rewards) if rewards else None


class TaskChoice(Protocol):
    """Chooses among the tasks of a stream. A task is named by its row."""

    def wants(self, row: int, epoch: int) -> bool:
        """Whether to draw the task now."""
        ...

    def record(self, row: int, rate: float, epoch: int) -> None:
        """Note the pass rate of a group of the task."""
        ...

    def metrics(self, epoch: int) -> Mapping[str, JSON]: ...

    def state_dict(self) -> JSON: ...

    def load_state_dict(self, state: Any) -> None: ...


class PassRateWindow:
    """Leaves out tasks whose last pass rate was outside of `low` to `high`: all their episodes would be equal.

    A task outside rests for one epoch, then is tried again. If the task is outside again, the rest is two epochs, then
    three, and so on: the policy changes, and so do the rates. An unplayed task does not rest.
    """

    def __init__(self, keys: Sequence[str], low: float, high: float) -> None:
        self._keys, self._low, self._high = keys, low, high
        self._resting: dict[str, tuple[int, int]] = {}
        """By key of the task: how often in a row the task was outside, and the epoch of its next draw."""

    def wants(self, row: int, epoch: int) -> bool:
        return self._resting.get(self._keys[row], (0, 0))[1] <= epoch

    def record(self, row: int, rate: float, epoch: int) -> None:
        key = self._keys[row]
        if self._low <= rate <= self._high:
            self._resting.pop(key, None)
            return
        times = self._resting.get(key, (0, 0))[0] + 1
        self._resting[key] = times, epoch + times + 1

    def metrics(self, epoch: int) -> Mapping[str, JSON]:
        return {"resting_tasks": sum(until > epoch for _, until in self._resting.values())}

    def state_dict(self) -> JSON:
        return {key: list(rest) for key, rest in self._resting.items()}

    def load_state_dict(self, state: Any) -> None:
        keys = set(self._keys) if isinstance(self._keys, list) else self._keys
        self._resting = {key: (times, until) for key, (times, until) in state.items() if key in keys}


class Curriculum:
    """Draws the tasks of low `difficulty` first (a number in a task's metadata), and adds level after level.

    The next level begins when the mean pass rate of the last 16 groups of the highest level so far is at least `rate`.
    Each difficulty is a level; of more than ten, ten levels of about equally many tasks are made.

    Raises ConfigError for a task without a difficulty.
    """

    def __init__(self, tasks: Sequence[Task], rate: float) -> None:
        self._rate = rate
        values = [_difficulty(task) for task in tasks]
        distinct = sorted(set(values))
        if len(distinct) > _MOST_LEVELS:
            ordered = sorted(values)
            cuts = {ordered[len(ordered) * i // _MOST_LEVELS] for i in range(1, _MOST_LEVELS)}
            distinct = [distinct[0], *sorted(cuts - {distinct[0]})]
        self._levels = [bisect_right(distinct, value) - 1 for value in values]
        self._top = len(distinct) - 1
        self._level = 0
        """The highest level in the draw."""
        self._recent: deque[float] = deque(maxlen=_EVIDENCE)

    def wants(self, row: int, epoch: int) -> bool:
        return self._levels[row] <= self._level

    def record(self, row: int, rate: float, epoch: int) -> None:
        if self._levels[row] != self._level:
            return
        self._recent.append(rate)
        if len(self._recent) == _EVIDENCE and statistics.fmean(self._recent) >= self._rate:
            self._level = min(self._level + 1, self._top)
            self._recent.clear()

    def metrics(self, epoch: int) -> Mapping[str, JSON]:
        return {"curriculum_level": self._level + 1, "curriculum_levels": self._top + 1}

    def state_dict(self) -> JSON:
        return {"level": self._level, "recent": list(self._recent)}

    def load_state_dict(self, state: Any) -> None:
        self._level = min(state["level"], self._top)
        self._recent = deque(state["recent"], maxlen=_EVIDENCE)


def _difficulty(task: Task) -> float:
    value = task.metadata.get("difficulty")
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        problem = f"has difficulty {value!r:.40}" if "difficulty" in task.metadata else "has no difficulty"
        raise ConfigError(
            f"curriculum: task {task.id or task.prompt!s:.60} {problem} in its metadata; give every task a "
            'number, such as {"difficulty": 2}, or leave out curriculum'
        )
    return float(value)
