"""Convert values from user code and models to plain JSON: an Env's observations, sampled arguments, tasks, error texts.

A trajectory is written to disk after the weights have changed. The write must not fail. So each value is converted when
it enters the trajectory, right after the hook that returned the value. A value outside JSON is refused with an error
that names the value.
"""

from __future__ import annotations

import copy
import copyreg
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from itertools import chain
from types import MappingProxyType
from typing import Any, NoReturn, TypeAlias, TypeVar

T = TypeVar("T")

JSON: TypeAlias = Any
"""A value for `json`. The type is Any, because a recursive alias makes user code noisier than safer."""

MAX_DEPTH = 100
"""Maximum depth of nested lists and mappings. Python's JSON fails at some greater depth."""
MAX_VALUES = 100_000
"""Maximum number of values in a converted value, at all depths together; `range(10**12)` would take forever."""
_MAX_BITS = 4096
"""The longest whole number, in bits. Python refuses to print much longer numbers."""
_SCALARS = frozenset({str, int, float, bool, type(None)})
"""Immutable classes. A subclass may be mutable."""
_LARGEST = 3.4e38
"""About the largest float32. Rewards are trained in float32."""


def text(value: str) -> str:
    """Replace lone surrogates (halves of characters) by U+FFFD: a UTF-8 file cannot hold them."""
    if value.isascii():
        return str(value)
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return str(value)


def to_json(value: Any, where: str) -> JSON:
    """The value as JSON: numpy's numbers become Python's, arrays and tuples lists, bytes text, keys text.

    Raises TypeError or ValueError for a value outside JSON. The message names the value's path, which begins with
    `where`.
    """
    return _converted(value, where, 0, _Conversion(strict=True))


def to_json_lossy(value: Any) -> JSON:
    """The value as JSON for logs: values inside that are not JSON become text. Never raises."""
    return _converted(value, "", 0, _Conversion(strict=False))


def copied(value: T, label: str) -> T:
    """A copy that shares no mutable part with the value. Raises TypeError if the value cannot be copied."""
    if _is_flat(value):
        return copy.copy(value)
    try:
        return copy.deepcopy(value)
    except RecursionError:  # no data set is nested so deeply, and records show only its upper part
        return value
    except Exception as exc:  # the boundary of a foreign __deepcopy__
        place = f" at {path}" if (path := _uncopied(value)) else ""
        why = " ".join(str(exc).split())
        raise TypeError(f"{label} cannot be copied for each episode ({why}{place}); put only JSON into it") from exc


def _is_flat(value: Any) -> bool:
    """Whether the value is a dict of immutable values, like the arguments of most calls."""
    return type(value) is dict and _SCALARS.issuperset(map(type, chain(value, value.values())))


def _view(mapping: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(mapping)  # a function, because pickle does not find the class by its name


def _reduced(view: MappingProxyType[Any, Any]) -> tuple[Any, ...]:
    return _view, (dict(view),)


copyreg.pickle(MappingProxyType, _reduced)
"""Python neither copies nor pickles read-only views. A Task may hold a view, and a parked episode is pickled."""


def _uncopied(value: Any) -> str:
    """The path to the innermost value that cannot be copied, such as metadata['lock']. "" if the outermost value is to
    blame."""
    where, seen = "", set[int]()
    while id(value) not in seen:
        seen.add(id(value))
        for place, part in _parts(value):
            if id(part) not in seen and not _copies(part):
                where, value = where + place, part
                break
    return where.removeprefix(".")


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict | MappingProxyType):
        yield from ((f"[{key!r:.40}]", part) for key, part in value.items())
    elif isinstance(value, list | tuple):
        yield from ((f"[{i}]", part) for i, part in enumerate(value))
    elif is_dataclass(value):
        yield from ((f".{field.name}", getattr(value, field.name, None)) for field in fields(value))


def _copies(value: Any) -> bool:
    try:
        copy.deepcopy(value)
    except RecursionError:
        return True
    except Exception:  # noqa: BLE001 - the boundary of a foreign __deepcopy__
        return False
    return True


def number(value: Any, label: str) -> float:
    """The value as a float: a reward, or a named part of a reward. Raises ValueError unless float32 can hold the value
    as a finite number."""
    try:
        result = math.nan if isinstance(value, str | bytes | bytearray) else float(value)
    except (TypeError, ValueError, OverflowError):
        result = math.nan
    if not abs(result) <= _LARGEST:  # nor NaN
        shown_value = repr(value) if isinstance(value, str | bytes) else _name(value)
        raise ValueError(f"{label} is {shown_value:.80}; it must be a finite number")
    return result


def finite(text: str) -> float:
    """A `parse_float` for `json.loads`. Raises ValueError for a number beyond the range of float, which Python would
    read as infinity."""
    if math.isinf(number := float(text)):
        raise ValueError(f"the number {text:.20} is too large")
    return number


def no_constant(name: str) -> NoReturn:
    """A `parse_constant` for `json.loads`. Raises ValueError for NaN and Infinity, which JSON lacks."""
    raise ValueError(f"{name} is not JSON")


_Place: TypeAlias = "str | tuple[_Place, Any]"
"""The path to a value: the caller's name of the whole value, or a pair of the path to a list or mapping and an index or
key."""
_CONTAINERS = (dict, list, tuple, Mapping, Sequence)
"""Classes of lists and mappings. Abstract classes come last, because their check is slow. `isinstance` is faster with a
tuple than with a union."""


_SIZED: tuple[type, ...] = (type({}.items()), list, tuple)
"""Classes with a reliable length."""


@dataclass(slots=True)
class _Conversion:
    """The state of one conversion."""

    strict: bool
    """Raise for a value outside JSON. Otherwise the value becomes text."""
    remaining: int = MAX_VALUES
    inside: set[int] = field(default_factory=set)
    """Ids of the lists and mappings around the current value."""

    def refuse(self, kind: type[Exception], where: _Place, why: str, instead: str = "...") -> JSON:
        """The text in place of a value outside JSON. With `strict`, raises TypeError or ValueError instead."""
        if self.strict:
            raise kind(f"{_said(where)} {why}")
        return instead


def _said(where: _Place) -> str:
    """A path as text, such as metadata['words'][1]. Only error messages need the text, which takes longer than a
    conversion."""
    return where if isinstance(where, str) else f"{_said(where[0])}[{where[1]!r:.40}]"


def _converted(value: Any, where: _Place, depth: int, walk: _Conversion) -> JSON:
    if type(value) is str:  # the usual case first
        return value if value.isascii() else text(value)
    if isinstance(value, Enum):
        return _converted(value.value, where, depth, walk)
    if isinstance(value, str):
        return text(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (int, float)):
        return _number(value, where, walk)
    if isinstance(value, (bytes, bytearray)):
        return value.decode("utf-8", "replace")
    if depth >= MAX_DEPTH:
        return walk.refuse(ValueError, where, f"is nested more than {MAX_DEPTH} deep")
    if not isinstance(value, _CONTAINERS):
        return _foreign(value, where, depth, walk)
    if id(value) in walk.inside:
        return walk.refuse(ValueError, where, "holds itself")
    walk.inside.add(id(value))
    try:
        return _held(value, where, depth + 1, walk)
    finally:
        walk.inside.discard(id(value))


def _held(value: Mapping[Any, Any] | Sequence[Any], where: _Place, depth: int, walk: _Conversion) -> JSON:
    if isinstance(value, (dict, Mapping)):
        return {
            key if type(key) is str and key.isascii() else _key(key, where, walk): _converted(
                item, (where, key), depth, walk
            )
            for key, item in _within(value.items(), where, walk)
        }
    return [_converted(item, (where, i), depth, walk) for i, item in enumerate(_within(value, where, walk))]


def _within(items: Collection[T], where: _Place, walk: _Conversion) -> Iterable[T]:
    """The items, counted towards the limit of values. Items above the limit are refused."""
    if type(items) in _SIZED and len(items) <= walk.remaining:
        walk.remaining -= len(items)
        return items
    return _counted(items, where, walk)


def _counted(items: Iterable[T], where: _Place, walk: _Conversion) -> Iterator[T]:
    for item in items:
        walk.remaining -= 1
        if walk.remaining < 0:
            walk.refuse(ValueError, where, f"has more than {MAX_VALUES} values")
            return
        yield item


def _number(value: float, where: _Place, walk: _Conversion) -> JSON:
    if isinstance(value, int):
        if value.bit_length() <= _MAX_BITS:
            return int(value)
        return walk.refuse(ValueError, where, f"is a number of {value.bit_length()} bits")
    if math.isfinite(value):
        return float(value)
    return walk.refuse(ValueError, where, f"is {value}; JSON has no such number", str(value))


def _key(key: Any, where: _Place, walk: _Conversion) -> str:
    if isinstance(key, str):
        return text(key)
    if key is None or isinstance(key, bool | int | float):
        return str(key)
    if walk.strict:
        raise TypeError(f"{_said(where)} has the key {key!r:.40}, a {type(key).__name__}; keys are text")
    return _name(key)


def _foreign(value: Any, where: _Place, depth: int, walk: _Conversion) -> JSON:
    """Convert a value of another library: numpy's and torch's scalars and arrays. Any other value is refused."""
    convert = getattr(value, "tolist", None)
    if callable(convert) and hasattr(value, "dtype"):
        return _converted(convert(), where, depth + 1, walk)
    why = f"is a {type(value).__name__}, which JSON cannot hold; give text, numbers, lists or dicts"
    return walk.refuse(TypeError, where, why, _name(value))


def _name(value: Any) -> str:
    """An object of any class as text, for an error message or a log."""
    try:
        return text(str(value))
    except Exception:  # noqa: BLE001 - the boundary of a foreign __str__: nothing may fail here
        return f"a {type(value).__name__}"
