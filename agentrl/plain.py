"""The one place where what others made becomes plain JSON: an Env's answers, sampled arguments, tasks, error texts.

A trajectory is written to disk after the weights have moved, when nothing may fail any more. So whatever enters one is
made plain where it enters, at the boundary of the hook that it came from, and what cannot be is refused there by name.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from agentrl.types import JSON

T = TypeVar("T")

MAX_DEPTH = 100
"""How deep lists and mappings may be nested; Python's JSON fails somewhere beyond."""
MAX_VALUES = 100_000
"""How many values may be held in all: `range(10**12)` has no end that anybody could wait for."""
_MAX_BITS = 4096
"""Of a whole number; Python refuses to print much longer ones."""
_LARGEST = 3.4e38
"""About the largest number of a float32, in which rewards are trained on."""


def text(value: str) -> str:
    """Without halves of characters (lone surrogates), which no UTF-8 file can hold: each becomes U+FFFD."""
    if value.isascii():
        return str(value)
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def plain(value: Any, where: str) -> JSON:
    """As JSON has it: numbers of numpy become Python's, arrays and tuples lists, bytes text, keys text.

    Raises TypeError or ValueError, naming the place in `where`, for what JSON cannot hold.
    """
    return _plain(value, where, 0, _Walk(strict=True))


def shown(value: Any) -> JSON:
    """As JSON, whatever it is: what JSON cannot hold becomes text. For what is only logged. Never raises."""
    return _plain(value, "", 0, _Walk(strict=False))


def number(value: Any, what: str) -> float:
    """A reward, or a part of one. Raises ValueError for what float32 cannot hold as a finite number."""
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not abs(found) <= _LARGEST:  # nor NaN
        raise ValueError(f"{what} is {_name(value):.80}; it must be a finite number")
    return found


@dataclass(slots=True)
class _Walk:
    """One value that is gone through, to its end."""

    strict: bool
    """Raise for what JSON cannot hold; else it becomes text."""
    left: int = MAX_VALUES
    inside: set[int] = field(default_factory=set)
    """Ids of the lists and mappings that hold what is looked at now."""


def _plain(value: Any, where: str, depth: int, walk: _Walk) -> JSON:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Enum):
        return _plain(value.value, where, depth, walk)
    if isinstance(value, str):
        return text(value)
    if isinstance(value, int | float):
        return _number(value, where, walk)
    if isinstance(value, bytes | bytearray):
        return value.decode("utf-8", "replace")
    if depth >= MAX_DEPTH:
        return _refused(ValueError(f"{where} is nested more than {MAX_DEPTH} deep"), "...", walk)
    if not isinstance(value, Mapping | Sequence):
        return _foreign(value, where, depth, walk)
    if id(value) in walk.inside:
        return _refused(ValueError(f"{where} holds itself"), "...", walk)
    walk.inside.add(id(value))
    try:
        return _held(value, where, depth + 1, walk)
    finally:
        walk.inside.discard(id(value))


def _held(value: Mapping[Any, Any] | Sequence[Any], where: str, depth: int, walk: _Walk) -> JSON:
    if isinstance(value, Mapping):
        return {
            _key(key, where, walk): _plain(item, f"{where}[{key!r:.40}]", depth, walk)
            for key, item in _within(value.items(), where, walk)
        }
    return [_plain(item, f"{where}[{i}]", depth, walk) for i, item in enumerate(_within(value, where, walk))]


def _within(items: Iterable[T], where: str, walk: _Walk) -> Iterator[T]:
    """The items, as far as so many may be held."""
    for item in items:
        walk.left -= 1
        if walk.left < 0:
            _refused(ValueError(f"{where} is of more than {MAX_VALUES} values"), "...", walk)
            return
        yield item


def _number(value: float, where: str, walk: _Walk) -> JSON:
    if isinstance(value, int):
        if value.bit_length() <= _MAX_BITS:
            return int(value)
        return _refused(ValueError(f"{where} is a number of {value.bit_length()} bits"), "...", walk)
    if math.isfinite(value):
        return float(value)
    return _refused(ValueError(f"{where} is {value}; JSON has no such number"), str(value), walk)


def _key(key: Any, where: str, walk: _Walk) -> str:
    if isinstance(key, str):
        return text(key)
    if key is None or isinstance(key, bool | int | float):
        return str(key)
    error = TypeError(f"{where} has the key {key!r:.40}, a {type(key).__name__}; keys are text")
    return str(_refused(error, _name(key), walk))


def _foreign(value: Any, where: str, depth: int, walk: _Walk) -> JSON:
    """Scalars and arrays of numpy and torch; nothing else."""
    convert = getattr(value, "tolist", None)
    if callable(convert) and hasattr(value, "dtype"):
        return _plain(convert(), where, depth + 1, walk)
    error = TypeError(
        f"{where} is a {type(value).__name__}, which no JSON can hold; give text, numbers, lists or dicts"
    )
    return _refused(error, _name(value), walk)


def _refused(error: Exception, instead: str, walk: _Walk) -> JSON:
    if walk.strict:
        raise error
    return instead


def _name(value: Any) -> str:
    """What is shown of an object of somebody's class."""
    try:
        return text(str(value))
    except Exception:  # noqa: BLE001 - the boundary of somebody's __str__: nothing may fail here
        return f"a {type(value).__name__}"
