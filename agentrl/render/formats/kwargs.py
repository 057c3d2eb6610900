"""Arguments written as in a Python call: `query="x", days=3`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from agentrl.render.formats import spelled
from agentrl.render.formats.arguments import Learned, Regions, literal
from agentrl.render.formats.spelled import Spelled
from agentrl.render.read.json_value import ParseFailure, json_at
from agentrl.render.read.lexer import Lexed, loose
from agentrl.render.read.schema import Schema
from agentrl.types import JSON

_KEY = re.compile(r"[\s,]*(?P<key>[^\W\d][\w.-]{0,127})\s*=\s*")
_ENDS = re.compile(r"\s*(?:,\s*[^\W\d][\w.-]{0,127}\s*=|,?\s*\))")
"""A pattern for the text after a value: a comma and another key, or the closing bracket."""
_NEXT = re.compile(r",\s*[^\W\d][\w.-]{0,127}\s*=")
_PADDED = re.compile(r"[-+]?0[0-9]{1,40}")
"""A pattern for a number with leading zeros, such as `07` in a date. Python refuses such numbers."""
_PART = re.compile(r"""\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|[\[{(]|[\]})]|,|[^\"'\[\](){},]+""", re.DOTALL)
_OPENS, _CLOSES = "[{(", "]})"


@dataclass(frozen=True, slots=True)
class AsKwargs:
    """The format with `key=value` separated by commas, up to an unmatched closing bracket. Values are JSON or
    Python."""

    unescaped: str = ""
    """The quote around strings, if the template does not escape this quote within strings. Else ""."""

    @property
    def markers(self) -> tuple[str, ...]:
        return ()

    def read(self, lexed: Lexed, offset: int, close: str, schema: Schema) -> tuple[Any, int]:
        values: dict[str, JSON] = {}
        while (key := _KEY.match(lexed.text, offset)) is not None:
            name = key["key"]
            if name in values:
                return ParseFailure(f"the argument {name!r} is given twice"), key.end()
            value, end = self._value(lexed, key.end())
            if isinstance(value, ParseFailure) and _PADDED.fullmatch(padded := lexed.text[key.end() : end].strip()):
                value = padded if schema.within(name).allows(padded) else int(padded)
            if isinstance(value, ParseFailure):
                return ParseFailure(f"the argument {name!r} cannot be read: {value.reason}"), key.end()
            values[name], offset = value, end
        last = re.compile(rf"\s*,(?=\s*{loose(close)})").match(lexed.text, offset) if values and close else None
        return values, last.end() if last else offset

    def _value(self, lexed: Lexed, offset: int) -> tuple[Any, int]:
        if self.unescaped and lexed.text.startswith(self.unescaped, offset):
            closing = re.compile(re.escape(self.unescaped) + f"(?={_ENDS.pattern})").search(lexed.text, offset + 1)
            if closing is None:
                return ParseFailure("no end"), offset
            return lexed.text[offset + 1 : closing.start()], closing.end()
        value, end = json_at(lexed.text, offset)
        if not isinstance(value, ParseFailure) and _ENDS.match(lexed.text, end):
            return value, end
        end = _end_of_value(lexed.text, offset)
        value = literal(lexed.text[offset:end])
        inner = _with_quotes_within(lexed.text, offset) if isinstance(value, ParseFailure) else None
        return inner or (value, end)


def _with_quotes_within(text: str, offset: int) -> tuple[str, int] | None:
    """Read a string with unescaped quotes inside: the string ends at the first quote that an argument or a closing
    bracket follows.

    None if the string would include a second argument.
    """
    quote = text[offset : offset + 1]
    closing = re.compile(f"{quote}(?={_ENDS.pattern})").search(text, offset + 1) if quote in ("'", '"') else None
    inner = text[offset + 1 : closing.start()] if closing else ""
    if closing is None or _NEXT.search(inner):
        return None
    value = literal(quote + re.sub(rf"(?<!\\){quote}", f"\\\\{quote}", inner) + quote)
    return (value, closing.end()) if isinstance(value, str) else None


def _end_of_value(text: str, offset: int) -> int:
    depth = 0
    while (part := _PART.match(text, offset)) is not None:
        token = part.group()
        if depth == 0 and token in (",", ")", "]", "}"):
            break
        depth += (token in _OPENS) - (token in _CLOSES)
        offset = part.end()
    return offset


def learn(probes: Spelled) -> Learned | None:
    """Learn the format from calls in the template's text, by keys, equals signs and quoted values. None for another
    format."""
    regions, quote = Regions(), ""
    for n, text in enumerate(probes.texts):
        regions.append([])
        for i in range(n + 1):
            _, key, value, other, second = spelled.words(i)
            match = re.search(rf"{key}\s*=\s*([\"']){value}\1\s*,\s*{other}\s*=\s*\1{second}\1", text)
            if match is None:
                return None
            quote = match[1]
            regions[-1].append(match.span())
    escapes = f"\\{quote}" in probes.typed(f"a{quote}b") or f"a{quote}b" not in probes.typed(f"a{quote}b")
    return AsKwargs("" if escapes else quote), regions
