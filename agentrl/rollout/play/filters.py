"""Filters of groups. A filter decides which groups of finished episodes a step does not learn from, and gives a
reason."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from agentrl.errors import ConfigError
from agentrl.trajectory.trajectory import Trajectory

GroupFilter: TypeAlias = Callable[[Sequence[Trajectory]], str | None]
"""A function of a group. The function returns None to keep the group, or the reason to drop the group, in a word or
two."""

NO_SPREAD = "no_spread"
"""The reason to drop a group of equal rewards. Filters need not return this reason."""


@dataclass(frozen=True, slots=True)
class OwnFilter:
    """A filter from a user's function of a group's trajectories. The function returns True to keep the group, and False
    or a reason as text to drop the group.

    Raises ConfigError if the function returns anything else.
    """

    function: Callable[[Sequence[Trajectory]], object]
    name: str
    """The reason for a group for which the function returns False."""

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
