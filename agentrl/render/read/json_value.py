"""JSON values in the middle of text."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NoReturn


@dataclass(frozen=True, slots=True)
class Unread:
    """Why text is no value."""

    reason: str


def json_at(text: str, at: int) -> tuple[Any, int]:
    """The JSON value that begins at `at` and where it ends, or an Unread."""
    try:
        value, end = _DECODER.raw_decode(text, at)
        json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair is no text
    except (ValueError, RecursionError) as exc:
        return Unread(getattr(exc, "msg", None) or type(exc).__name__), at
    return value, end


def _not_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_not_json)
