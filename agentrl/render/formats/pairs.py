"""Arguments written as keys and values between markers: `<parameter=` key `>` value `</parameter>`."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from agentrl.render.formats import spelled
from agentrl.render.formats.arguments import (
    CDATA,
    NULL,
    Learned,
    Regions,
    allowed,
    by_schema,
    literal,
    null_in,
    runs_on,
    section,
)
from agentrl.render.formats.spelled import Spelled
from agentrl.render.read.json_value import ParseFailure
from agentrl.render.read.lexer import TYPE, Lexed, has_tag, is_tag, loose, pieces
from agentrl.render.read.schema import Schema
from agentrl.types import JSON

_NUMBER = 7919
_KEY = r"[^\s<>\"\x00]+?"


@dataclass(frozen=True, slots=True)
class AsPairs:
    """The format that writes each argument as `open`, key, `between`, value, `close`.

    Strings are not quoted, so the schema of a value decides: a string is taken unchanged. Other values are read as
    JSON, or as Python if a template writes Python. A type that is written in `between` (`string="true">`) takes
    precedence over the schema.
    """

    open: str
    between: str
    close: str
    string_type: str = ""
    """The text in the type's placeholder in `between` for a string value."""
    quoted: bool = False
    """Whether strings are written as JSON, with quotes."""
    escaped: bool = False
    """Whether texts are escaped: `&lt;` means `<`."""
    cdata: bool = False
    """Whether text with markup is in a CDATA section."""
    null: str = NULL

    @property
    def markers(self) -> tuple[str, ...]:
        return (self.open, self.between, self.close)

    def read(self, lexed: Lexed, offset: int, close: str, schema: Schema) -> tuple[Any, int]:
        key = re.compile(rf"\s*{self._opening(_KEY, TYPE)}")
        values: dict[str, JSON] = {}
        while (opened := key.match(lexed.syntax, offset)) is not None:
            name, offset = opened["key"], opened.end()
            missing = schema.keys.difference(values, (name,))
            result = self._text(lexed, offset, name, close, "|".join(map(re.escape, sorted(missing))) or _KEY)
            if isinstance(result, ParseFailure):
                return result, offset
            text, offset = result
            values[name] = self._value(text, opened.groupdict().get("type"), schema.within(name))
        return values, offset

    def _opening(self, key: str, captured: str = "") -> str:
        return rf"{loose(self.open)}\s*(?P<key>{key})\s*{loose(self.between, captured)}"

    def _another(self) -> re.Pattern[str]:
        """A pattern for the start of a second argument."""
        tags = [re.escape(tag) for tag in pieces(self.between) if is_tag(tag)]
        return re.compile("|".join([self._opening(_KEY), *tags] if self.open else tags) or r"(?!)")

    def _text(self, lexed: Lexed, offset: int, name: str, close: str, missing: str) -> tuple[str, int] | ParseFailure:
        """Read the text of a value from `offset` on. Returns the text, and the offset after its close. `missing` is a
        pattern for keys of later arguments."""
        follows = "|".join(filter(None, (loose(self.open), loose(close), r"\Z")))
        end = rf"{loose(self.close)}(?=\s*(?:{follows}))"
        protected = self.cdata and lexed.syntax.startswith(CDATA[0], offset)
        if protected:
            closed, text = section(lexed, offset, end)
        else:
            closed = lexed.search(end, offset)
            text = lexed.text[offset : closed.start() if closed else offset]
        if closed is None or (not protected and runs_on(lexed, offset, closed.start(), close, self._opening(_KEY))):
            return ParseFailure(f"the argument {name!r} is not closed")
        following = None if protected else self._swallowed(lexed, offset, closed.start(), missing)
        if following is not None:
            text = lexed.text[offset:following]
            value, line, before = text.rpartition("\n")
            ends = line and not before.strip() and not has_tag(self.between)  # <arg_key> ends no <arg_value>
            return (value, following) if ends else ParseFailure(f"the argument {name!r} is not closed")
        first = lexed.search(loose(self.close), closed.start() if protected else offset)
        if first and self._another().search(lexed.syntax, first.end(), closed.start()):
            return ParseFailure(f"text after the argument {name!r}")
        return text, closed.end()

    def _swallowed(self, lexed: Lexed, offset: int, stop: int, missing: str) -> int | None:
        """The start of another argument within `text[offset:stop]`, before which this value ends. None without another
        argument."""
        opened, closed = lexed.search(self._opening(missing), offset), lexed.search(loose(self.close), offset)
        if opened is None or opened.end() > stop or (closed is not None and closed.start() < stop):
            return None  # an argument closed within a value is text
        return opened.start()

    def _value(self, text: str, kind: str | None, schema: Schema) -> JSON:
        text = text.removeprefix(_edge(self.between[::-1])[::-1]).removesuffix(_edge(self.close))
        if self.escaped:
            text = html.unescape(text)
        if self.quoted or (kind is not None and self.string_type):
            value = text if kind == self.string_type else literal(text)
            value = value if isinstance(value, str) else allowed(text, schema)
            return text if isinstance(value, ParseFailure) else value
        return by_schema(text, schema, self.null)


def learn(probes: Spelled) -> Learned | None:
    """Learn the format from calls in the template's text, by repeated markers between keys and values. None for another
    format."""
    regions = _regions(probes.texts)
    if regions is None:
        return None
    first, between, second, after_last = _apart(probes.texts[0])
    opening = spelled.common_end(first, second)
    closing = spelled.common_start(second[: len(second) - len(opening)], after_last)
    number = _value_of(probes.typed(_NUMBER))
    quoted = between.endswith('"') and closing.startswith('"') and '"' not in number
    if quoted:
        between, closing = between[:-1], closing[1:]
    if not (between.strip() and (opening + closing).strip()):
        return None
    before, after = len(spelled.name(0)) + len(first) - len(opening), quoted + len(closing)
    regions = [[(start + before, stop + after) for start, stop in row] for row in regions]
    escaped = "&lt;" in _value_of(probes.typed("<"))
    between, string_type = _typed_between(between, number)
    cdata = f"{CDATA[0]}<{CDATA[1]}" in probes.typed("<")
    return AsPairs(opening, between, closing, string_type, quoted, escaped, cdata, null_in(probes)), regions


def _regions(texts: Sequence[str]) -> Regions | None:
    """The spans of the arguments, from each call's name to its last value. None if a word is missing or in another
    order."""
    rows = [[spelled.places(text, i) for i in range(n + 1)] for n, text in enumerate(texts)]
    last = len(spelled.words(0)[-1])
    regions = [[(place[0], place[-1] + last) for place in row if place] for row in rows]
    return regions if all(all(row) for row in rows) else None


def _apart(text: str) -> list[str]:
    """Four texts of the first call: after the name, after the first key, after its value, and after the last value."""
    words, place = spelled.words(0), spelled.places(text, 0) or []
    ends = [offset + len(word) for offset, word in zip(place, words, strict=True)]
    first, between, second, _, after_last = (text[a:b] for a, b in zip(ends, [*place[1:], len(text)], strict=True))
    return [first, between, second, after_last]


def _value_of(text: str) -> str:
    """The text between the first and the second key of a call."""
    key, other = list(spelled.arguments(0))
    return text.partition(key)[2].partition(other)[0]


def _typed_between(between: str, number: str) -> tuple[str, str]:
    """The marker between key and value with a placeholder for the type, and the type's text for strings."""
    other = number.partition(str(_NUMBER))[0]
    if other == between or not other:
        return between, ""
    before = _common(between, other)
    after = _common(between[len(before) :][::-1], other[len(before) :][::-1])[::-1]
    before, after = re.sub(r"[^\W_]+\Z", "", before), re.sub(r"\A[^\W_]+", "", after)
    kind = between[len(before) : len(between) - len(after)]  # the whole word
    return (before + TYPE + after, kind) if kind.isalnum() else (between, "")


def _common(first: str, second: str) -> str:
    """The text with which both texts begin."""
    return "".join(ours for ours, _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


def _edge(marker: str) -> str:
    """The whitespace at the start of a marker."""
    return marker[: len(marker) - len(marker.lstrip())]
