"""Filter and sort lists of episodes, for `agentrl show --list` and for the web page."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Self, TypeAlias

from agentrl.errors import ConfigError, did_you_mean
from agentrl.trajectory.outline import Outline
from agentrl.types import JSON

Listed: TypeAlias = tuple[str, int, Mapping[str, JSON]]
"""An episode in a list: the file's name, the episode's number in the file, and the episode's summary (`Outline`)."""

_COMPARED: Mapping[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
    "=": operator.eq,
    "": operator.eq,
}
SORTED_BY = (
    "reward",
    "tokens",
    "turns",
    "sampled",
    "trained",
    "masked",
    "calls",
    "errors",
    "seconds",
    "gap",
    "advantage",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """Conditions for episodes, and an order. An episode must meet all conditions. An empty field is no condition."""

    stop: str = ""
    reason: str = ""
    """The episode has tokens that are masked for this reason; `any`: for any reason."""
    reward: str = ""
    """A number, possibly after <, <=, > or >=, such as `>=0.5`; `none` for episodes without a reward."""
    tool: str = ""
    """The name of a tool that the episode called, or `tool:Type` for a tool that failed with this type of error."""
    text: str = ""
    """Part of the task's name, the episode's name or the answer."""
    group: str = ""
    sort: str = ""
    """A number of an episode to sort by, such as `tokens`. With a minus, as in `-tokens`, the largest is first."""

    @classmethod
    def of(cls, parameters: Mapping[str, str]) -> Self:
        """A query from the parameters of a request; other parameters are ignored. Raises ConfigError."""
        query = cls(
            **{
                condition.name: parameters[condition.name]
                for condition in fields(cls)
                if parameters.get(condition.name)
            }
        )
        query.check()
        return query

    def check(self) -> None:
        """Raises ConfigError for an impossible `reward` or `sort`."""
        if self.reward not in ("", "none") and not _REWARD.fullmatch(self.reward):
            raise ConfigError(f"reward {self.reward!r}: give a number such as 0.5, a bound such as '<0.5', or none")
        if (name := self.sort.removeprefix("-")) and name not in SORTED_BY:
            raise ConfigError(f"sort {name!r} is no figure of an episode{did_you_mean(name, SORTED_BY)}")

    @property
    def empty(self) -> bool:
        return self == type(self)()

    def matches(self, outline: Mapping[str, JSON]) -> bool:
        return self.matching()(outline)

    def matching(self) -> Callable[[Mapping[str, JSON]], bool]:
        """A function that does the same as `matches`, but faster for many episodes: only the set fields are read."""
        conditions = [holds for name, holds in _CONDITIONS if getattr(self, name)]
        return lambda outline: all(holds(self, outline) for holds in conditions)

    def ordered(self, episodes: Iterable[Listed]) -> list[Listed]:
        """The episodes sorted by `sort`. Episodes without this number come last."""
        listed = list(episodes)
        if not self.sort:
            return listed
        name, largest_first = self.sort.removeprefix("-"), self.sort.startswith("-")
        with_value = [episode for episode in listed if figure(episode[2], name) is not None]
        with_value.sort(key=lambda episode: figure(episode[2], name) or 0.0, reverse=largest_first)
        return with_value + [episode for episode in listed if figure(episode[2], name) is None]


_REWARD = re.compile(r"(<=|>=|<|>|=|)\s*(-?\d+(?:\.\d+)?)")


def figure(outline: Mapping[str, JSON], name: str) -> float | None:
    """A number of an episode by which a list can be sorted; None if the episode has none."""
    if name == "seconds":
        return float(outline.get("generate_s", 0.0) + outline.get("env_s", 0.0))
    if name == "errors":
        return float(sum(outline.get("tool_errors", {}).values()) + outline.get("bad_calls", 0))
    value = outline.get(name, _ZERO.get(name))
    return float(sum(value.values())) if isinstance(value, Mapping) else None if value is None else float(value)


_ZERO: Mapping[str, JSON] = {
    outline_field.name: {} if outline_field.name in ("masked", "calls") else 0
    for outline_field in fields(Outline)
    if outline_field.name in ("tokens", "turns", "sampled", "trained", "masked", "calls")
}


def _masked_for(outline: Mapping[str, JSON], reason: str) -> bool:
    masked = outline.get("masked", {})
    return bool(masked) if reason == "any" else reason in masked


def _rewarded(reward: float | None, condition: str) -> bool:
    bound = _bound(condition)
    if bound is None or reward is None:
        return bound is None and reward is None
    return bound[0](reward, bound[1])


@cache
def _bound(condition: str) -> tuple[Callable[[float, float], bool], float] | None:
    """The comparison and the number of a condition such as `>=0.5`; None for `none`."""
    match = _REWARD.fullmatch(condition)
    return None if match is None else (_COMPARED[match[1]], float(match[2]))


def _mentions(outline: Mapping[str, JSON], text: str) -> bool:
    return any(text in str(outline.get(name, "")).casefold() for name in ("task", "name", "answer", "failure"))


_CONDITIONS: Sequence[tuple[str, Callable[[Query, Mapping[str, JSON]], bool]]] = (
    ("stop", lambda query, outline: outline.get("stop") == query.stop),
    ("reason", lambda query, outline: _masked_for(outline, query.reason)),
    ("reward", lambda query, outline: _rewarded(outline.get("reward"), query.reward)),
    (
        "tool",
        lambda query, outline: query.tool in outline.get("calls", {}) or query.tool in outline.get("tool_errors", {}),
    ),
    ("group", lambda query, outline: str(outline.get("group")) == query.group),
    ("text", lambda query, outline: _mentions(outline, query.text.casefold())),
)
