"""Filters of groups: the groups of finished episodes that a step does not learn from, with reasons."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from agentrl.errors import ConfigError
from agentrl.trajectory.trajectory import Trajectory

GroupFilter: TypeAlias = Callable[[Sequence[Trajectory]], str | None]
"""The reason to drop a group, in a word or two, or None to keep the group."""

NO_SPREAD = "no_spread"
"""The reason for groups of equal rewards. No filter has to name the reason."""


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
