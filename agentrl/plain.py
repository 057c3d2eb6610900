"""The one place where what others made becomes plain JSON: an Env's answers, sampled arguments, tasks, error texts.

A trajectory is written to disk after the weights have moved, when nothing may fail any more. So whatever enters one is
made plain where it enters, at the boundary of the hook that it came from, and what cannot be is refused there by name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentrl.types import JSON

MAX_DEPTH = 100
"""How deep lists and mappings may be nested; Python's JSON fails somewhere beyond."""
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
    return _plain(value, where, 0, strict=True)


def shown(value: Any) -> JSON:
    """As JSON, whatever it is: what JSON cannot hold becomes text. For what is only logged. Never raises."""
    return _plain(value, "", 0, strict=False)


def number(value: Any, what: str) -> float:
    """A reward, or a part of one. Raises ValueError for what float32 cannot hold as a finite number."""
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not abs(found) <= _LARGEST:  # nor NaN
        raise ValueError(f"{what} is {_name(value):.80}; it must be a finite number")
    return found


def _plain(value: Any, where: str, depth: int, *, strict: bool) -> JSON:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Enum):
        return _plain(value.value, where, depth, strict=strict)
    if isinstance(value, str):
        return text(value)
    if isinstance(value, int | float):
        return _number(value, where, strict=strict)
    if isinstance(value, bytes | bytearray):
        return value.decode("utf-8", "replace")
    if depth >= MAX_DEPTH:
        return _refused(ValueError(f"{where} is nested more than {MAX_DEPTH} deep"), "...", strict=strict)
    if isinstance(value, Mapping):
        return {
            _key(key, where, strict=strict): _plain(item, f"{where}[{key!r:.40}]", depth + 1, strict=strict)
            for key, item in value.items()
        }
    if isinstance(value, Sequence):
        return [_plain(item, f"{where}[{i}]", depth + 1, strict=strict) for i, item in enumerate(value)]
    return _foreign(value, where, depth, strict=strict)


def _number(value: float, where: str, *, strict: bool) -> JSON:
    if isinstance(value, int):
        if value.bit_length() <= _MAX_BITS:
            return int(value)
        return _refused(ValueError(f"{where} is a number of {value.bit_length()} bits"), "...", strict=strict)
    if math.isfinite(value):
        return float(value)
    return _refused(ValueError(f"{where} is {value}; JSON has no such number"), str(value), strict=strict)


def _key(key: Any, where: str, *, strict: bool) -> str:
    if isinstance(key, str):
        return text(key)
    if key is None or isinstance(key, bool | int | float):
        return str(key)
    error = TypeError(f"{where} has the key {key!r:.40}, a {type(key).__name__}; keys are text")
    return str(_refused(error, _name(key), strict=strict))


def _foreign(value: Any, where: str, depth: int, *, strict: bool) -> JSON:
    """Scalars and arrays of numpy and torch; nothing else."""
    convert = getattr(value, "tolist", None)
    if callable(convert) and hasattr(value, "dtype"):
        return _plain(convert(), where, depth + 1, strict=strict)
    error = TypeError(
        f"{where} is a {type(value).__name__}, which no JSON can hold; give text, numbers, lists or dicts"
    )
    return _refused(error, _name(value), strict=strict)


def _refused(error: Exception, instead: str, *, strict: bool) -> JSON:
    if strict:
        raise error
    return instead


def _name(value: Any) -> str:
    """What is shown of an object of somebody's class."""
    try:
        return text(str(value))
    except Exception:  # noqa: BLE001 - the boundary of somebody's __str__: nothing may fail here
        return f"a {type(value).__name__}"
