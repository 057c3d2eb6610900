"""Filters of groups: the groups of finished episodes that a step does not learn from, with reasons."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TypeAlias

from agentrl.errors import ConfigError
from agentrl.rollout.data.pass_rates import pass_rate
from agentrl.trajectory.trajectory import Trajectory

GroupFilter: TypeAlias = Callable[[Sequence[Trajectory]], str | None]
"""The reason to drop a group, in a word or two, or None to keep the group."""

NO_SPREAD = "no_spread"
"""The reason for groups of equal rewards. No filter has to name the reason."""


@dataclass(frozen=True, slots=True)
class PassRate:
    """Drops groups with a pass rate outside of a window. The pass rate is the mean of the rewards, each cut to 0 to
    1."""

    low: float
    high: float

    def __call__(self, group: Sequence[Trajectory]) -> str | None:
        rate = pass_rate(group)
        if rate is None:
            return "no_reward"
        return "too_hard" if rate < self.low else "too_easy" if rate > self.high else None


@dataclass(frozen=True, slots=True)
class ResponseLength:
    """Drops groups whose valid episodes have on average more than `most` tokens after the prompt."""

    most: float

    def __call__(self, group: Sequence[Trajectory]) -> str | None:
        lengths = [sum(s.response_length for s in t.segments) for t in group if t.is_valid]
        return "too_long" if lengths and fmean(lengths) > self.most else None


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Drops groups with fewer than `least` valid episodes that called a tool."""

    least: int = 1

    def __call__(self, group: Sequence[Trajectory]) -> str | None:
        return None if sum(t.is_valid and t.tool_call_count > 0 for t in group) >= self.least else "no_tool_use"


@dataclass(frozen=True, slots=True)
class OwnFilter:
    """A user's function of a group's trajectories. It returns True to keep the group, False, or the reason to drop.

    Raises ConfigError for any other answer.
    """

    function: Callable[[Sequence[Trajectory]], object]
    name: str
    """The reason for False."""

    def __call__(self, group: Sequence[Trajectory]) -> str | None:
        match self.function(group):
            case None | True:
                return None
            case False:
                return self.name
            case str(reason) if reason:
                return reason
            case other:
                raise ConfigError(
                    f"filter {self.name} returned {other!r:.80}; return True, False or the reason as text"
                )


def drop_reason(filters: Sequence[GroupFilter], group: Sequence[Trajectory]) -> str | None:
    """The reason of the first filter that drops the group. None if all filters keep the group."""
    return next((reason for group_filter in filters if (reason := group_filter(group)) is not None), None)
