"""Read JSON Lines strictly. Input that two programs could read differently raises an error with file and line."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from agentrl.errors import ConfigError
from agentrl.types import JSON

_DEEPEST = 100
"""The most levels of nesting in a value. Python's own parser fails at a depth of some hundreds, depending on the
caller."""


def read_lines(lines: Iterable[bytes], path: Path) -> Iterator[tuple[int, JSON]]:
    """The number and value of each line of a file. Empty lines are left out.

    Raises ConfigError (`file:line: what and remedy`).
    """
    for number, raw in enumerate(lines, 1):
        if line := _text(raw, f"{path}:{number}", first=number == 1):
            yield number, _value(line, f"{path}:{number}")


def parse_line(raw: bytes, where: str, *, first: bool) -> JSON:
    """The JSON value of a line. `where` is the place in error messages. `first`: the line may begin with a byte order
    mark. Raises ConfigError."""
    return _value(_text(raw, where, first=first), where)


def _text(raw: bytes, where: str, *, first: bool) -> str:
    try:
        return raw.decode("utf-8-sig" if first else "utf-8").strip()
    except UnicodeDecodeError as exc:
        raise ConfigError(
            f"{where}: not UTF-8 text ({exc.reason} at byte {exc.start}); save it as UTF-8 JSONL"
        ) from exc


def _value(line: str, where: str) -> JSON:
    try:
        value = json.loads(line, object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite)
        _check_depth(value)
        if "\\u" in line:
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as exc:
        raise ConfigError(
            f"{where}: not valid JSON ({exc.msg}, column {exc.colno}); write one object on one line"
        ) from exc
    except _RefusedError as exc:
        raise ConfigError(f"{where}: {exc}") from exc
    except RecursionError as exc:
        raise ConfigError(f"{where}: nested more than {_DEEPEST} levels deep; flatten it") from exc
    except UnicodeEncodeError as exc:
        half = ascii(exc.object[exc.start])[1:-1]
        raise ConfigError(
            f"{where}: {half} is half of a character; write both halves, or the character itself"
        ) from exc
    except ValueError as exc:  # Python reads no whole number of more than 4,300 digits
        raise ConfigError(f"{where}: a number is too long to be read; write it as a string") from exc
    return value


class _RefusedError(Exception):
    """A value that is not accepted. The message has the error and its remedy, without the line."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise _RefusedError(f"key {json.dumps(twice)} appears twice in one object; remove one of them")
    return mapping


def _no_constant(name: str) -> NoReturn:
    raise _RefusedError(f"{name} is not a JSON number; write null, or a string")


def _finite(text: str) -> float:
    if math.isinf(number := float(text)):
        raise _RefusedError(f"the number {text:.20} is too large; write it as a string")
    return number


def _check_depth(value: JSON) -> None:
    level = [value]
    for _ in range(_DEEPEST):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return
    raise RecursionError
