"""Read JSON values in the middle of a text."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from agentrl.plain import finite, no_constant


@dataclass(frozen=True, slots=True)
class ParseFailure:
    """The reason why a text is no valid value."""

    reason: str


def json_at(text: str, offset: int) -> tuple[Any, int]:
    """The JSON value at `offset`, and the offset of its end. Without a value: a ParseFailure, and `offset`."""
    try:
        value, end = NUMBERS.raw_decode(text, offset)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()  # half a surrogate pair is no text
    except (ValueError, RecursionError) as exc:
        return ParseFailure(
            getattr(exc, "msg", None) or (str(exc) if type(exc) is ValueError else type(exc).__name__)
        ), offset
    return value, end


NUMBERS = json.JSONDecoder(parse_constant=no_constant, parse_float=finite)
"""A JSON decoder that refuses NaN, Infinity, and numbers beyond the range of float."""
