"""What spellings of arguments have in common: they stand behind a call's name."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

from agentrl.render.formats.spelled import Span
from agentrl.render.read.json_value import Unread, json_at
from agentrl.render.read.lexer import Lexed
from agentrl.types import JSON


class Arguments(Protocol):
    """How a call's arguments are spelled."""

    @property
    def markers(self) -> tuple[str, ...]:
        """What a Lexer must tell from look-alikes."""
        ...

    def read(self, lexed: Lexed, at: int, close: str, types: Mapping[str, Any]) -> tuple[Any, int]:
        """A mapping (or an Unread) and where it ends. `close` is what follows, `types` the arguments' schemas."""
        ...


CDATA = ("<![CDATA[", "]]>")
"""Some templates put text with markup in it between these."""
Regions: TypeAlias = list[list[Span]]
"""Where the arguments of each call stand, in each text of a Spelled."""
Learned: TypeAlias = tuple[Arguments, Regions]


_EMPTY: Mapping[str, Callable[[], JSON]] = {"array": list, "object": dict}
"""What nothing is, written as elements."""


def by_schema(text: str, schema: Mapping[str, Any] | None) -> JSON:
    """A value without quotes: text where the schema says string; else JSON, or Python, or else text."""
    if schema is not None and schema.get("type") == "string":
        return text
    if not text and schema is not None and schema.get("type") in _EMPTY:
        return _EMPTY[schema["type"]]()
    value = literal(text)
    return text if isinstance(value, Unread) else value


def section(lexed: Lexed, at: int, end: str) -> tuple[re.Match[str] | None, str]:
    """What closes the CDATA section that opens at `at`, together with the marker `end`, and the text within it.

    One that opens again before it is closed has lost its own close, and is none.
    """
    start = at + len(CDATA[0])
    closed = lexed.search(re.escape(CDATA[1]) + end, start)
    again = lexed.search(re.escape(CDATA[0]), start)
    if closed is None or (again is not None and again.start() < closed.start()):
        return None, ""
    return closed, lexed.text[start : closed.start()]


def literal(text: str) -> Any:
    """The JSON or Python value that the text is, or an Unread."""
    value, end = json_at(text.strip(), 0)
    if not isinstance(value, Unread) and end == len(text.strip()):
        return value
    try:
        value = ast.literal_eval(text.strip())
        json.dumps(value, allow_nan=False)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return Unread("neither JSON nor a Python literal")
    return value
