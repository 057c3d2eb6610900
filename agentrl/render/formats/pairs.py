"""Arguments as keys and values between markers: `<parameter=` key `>` value `</parameter>`."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentrl.render.formats import spelled
from agentrl.render.formats.arguments import CDATA, Learned, Regions, by_schema, literal, section
from agentrl.render.formats.spelled import Spelled
from agentrl.render.read.json_value import Unread
from agentrl.render.read.lexer import TYPE, Lexed, is_tag, loose, pieces
from agentrl.types import JSON

_NUMBER = 7919


@dataclass(frozen=True, slots=True)
class AsPairs:
    """`open` key `between` value `close`, for each argument.

    Strings are not quoted, so that a value's schema decides: a string is taken as it stands, anything else is read as
    JSON, or as Python where a template writes it so. Where `between` names the type (`string="true">`), that decides.
    """

    open: str
    between: str
    close: str
    string_type: str = ""
    """What stands in the hole of `between` if the value is a string."""
    quoted: bool = False
    """Strings are written as JSON."""
    escaped: bool = False
    """`&lt;` stands for `<`."""
    cdata: bool = False
    """Text with markup in it stands in a CDATA section."""

    @property
    def markers(self) -> tuple[str, ...]:
        return (self.open, self.between, self.close)

    def read(self, lexed: Lexed, at: int, close: str, types: Mapping[str, Any]) -> tuple[Any, int]:
        between = loose(self.between, TYPE)
        key = re.compile(rf"\s*{loose(self.open)}\s*(?P<key>[^\s<>\"\x00]+?)\s*{between}")
        begun = [rf"{loose(self.open)}\s*[^\s<>\"\x00]+?\s*{loose(self.between)}"] if self.open else []
        another = re.compile(
            "|".join([*begun, *(re.escape(tag) for tag in pieces(self.between) if is_tag(tag))]) or r"(?!)"
        )
        follows = "|".join(filter(None, (loose(self.open), loose(close), r"\Z")))
        end = rf"{loose(self.close)}(?=\s*(?:{follows}))"
        values: dict[str, JSON] = {}
        while (opened := key.match(lexed.syntax, at)) is not None:
            name = opened["key"]
            at = opened.end()
            protected = self.cdata and lexed.syntax.startswith(CDATA[0], at)
            if protected:
                closed, text = section(lexed, at, end)
            else:
                closed = lexed.search(end, at)
                text = lexed.text[at : closed.start() if closed else at]
            if closed is None:
                return Unread(f"the argument {name!r} is not closed"), at
            first = lexed.search(loose(self.close), closed.start() if protected else at)
            if first and another.search(lexed.syntax, first.end(), closed.start()):
                return Unread(f"text behind the argument {name!r}"), at
            values[name] = self._value(text, opened.groupdict().get("type"), types.get(name))
            at = closed.end()
        return values, at

    def _value(self, text: str, kind: str | None, schema: Mapping[str, Any] | None) -> JSON:
        text = text.removeprefix(_edge(self.between[::-1])[::-1]).removesuffix(_edge(self.close))
        if self.escaped:
            text = html.unescape(text)
        if kind is not None and self.string_type:
            value = text if kind == self.string_type else literal(text)
            return text if isinstance(value, Unread) else value
        if self.quoted:
            schema = None
        return by_schema(text, schema)


def learn(probes: Spelled) -> Learned | None:
    """Find keys and values between markers that repeat."""
    regions = Regions()
    for n, text in enumerate(probes.texts):
        found = [spelled.places(text, i) for i in range(n + 1)]
        if any(place is None for place in found):
            return None
        regions.append([(place[0], place[-1] + len(spelled.words(0)[-1])) for place in found if place is not None])
    text, place = probes.texts[0], spelled.places(probes.texts[0], 0) or []
    ends = [at + len(word) for at, word in zip(place, spelled.words(0), strict=True)]
    first, between, second = (text[a:b] for a, b in zip(ends[:3], place[1:4], strict=True))
    opening = spelled.common_end(first, second)
    closing = spelled.common_start(second[: len(second) - len(opening)], text[ends[-1] :])
    number = _value_of(probes.typed(_NUMBER))
    quoted = between.endswith('"') and closing.startswith('"') and '"' not in number
    if quoted:
        between, closing = between[:-1], closing[1:]
    if not (between.strip() and (opening + closing).strip()):
        return None
    regions = [
        [(a + len(spelled.name(0)) + len(first) - len(opening), b + quoted + len(closing)) for a, b in row]
        for row in regions
    ]
    escaped = "&lt;" in _value_of(probes.typed("<"))
    between, string_type = _typed_between(between, number)
    cdata = f"{CDATA[0]}<{CDATA[1]}" in probes.typed("<")
    return AsPairs(opening, between, closing, string_type, quoted, escaped, cdata), regions


def _value_of(text: str) -> str:
    """What stands between the first key and the second of a typed call."""
    key, other = list(spelled.arguments(0))
    return text.partition(key)[2].partition(other)[0]


def _typed_between(between: str, number: str) -> tuple[str, str]:
    """The marker between key and value, with a hole where it tells a string from a number; and what a string has."""
    other = number.partition(str(_NUMBER))[0]
    if other == between or not other:
        return between, ""
    start = 0
    while start < min(len(between), len(other)) and between[start] == other[start]:
        start += 1
    end = 0
    while end < min(len(between), len(other)) - start and between[-1 - end] == other[-1 - end]:
        end += 1
    kind = between[start : len(between) - end]
    while start and between[start - 1].isalnum():
        start -= 1
    while end and between[len(between) - end].isalnum():
        end -= 1
    kind = between[start : len(between) - end]
    return (between[:start] + TYPE + between[len(between) - end :], kind) if kind.isalnum() else (between, "")


def _edge(marker: str) -> str:
    """The whitespace with which a marker begins."""
    return marker[: len(marker) - len(marker.lstrip())]
