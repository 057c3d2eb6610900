"""Arguments written as XML-like elements whose tags are the keys: `<query>x</query>`. Objects and lists may be nested
elements."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.render.formats import spelled
from agentrl.render.formats.arguments import CDATA, NULL, Learned, Regions, by_schema, null_in, runs_on, section
from agentrl.render.formats.spelled import Spelled
from agentrl.render.read.json_value import ParseFailure
from agentrl.render.read.lexer import Lexed, loose
from agentrl.render.read.schema import Schema
from agentrl.types import JSON

_DEPTH = 32
_INNER, _LEAF, _LEAVES = "zqinner", "zqleaf", ["zqleafa", "zqleafb"]


@dataclass(frozen=True, slots=True)
class AsKeyTags:
    """The format that writes each argument as `open`, key, `between`, value, `close`, key, `end`."""

    open: str
    between: str
    close: str
    end: str
    nested: bool = False
    """Whether objects are written as nested elements."""
    item: str = ""
    """The tag of the elements of a list."""
    escaped: bool = False
    """Whether texts are escaped: `&lt;` means `<`."""
    cdata: bool = False
    """Whether text with markup is in a CDATA section."""
    null: str = NULL

    @property
    def markers(self) -> tuple[str, ...]:
        return (self.open, self.between, self.close, self.end)

    def read(self, lexed: Lexed, offset: int, close: str, schema: Schema) -> tuple[Any, int]:
        elements, stop, error = self._elements(lexed, offset, len(lexed.syntax), schema, 0, close)
        return (ParseFailure(error), offset) if error else (dict(elements), stop)

    def _elements(
        self, lexed: Lexed, offset: int, stop: int, schema: Schema, depth: int, call_close: str = ""
    ) -> tuple[list[tuple[str, JSON]], int, str]:
        """Read elements from `offset` on: pairs of key and value, the end of the last element, and the error (""
        without an error)."""
        opening = re.compile(r"\s*" + self._opening(r"(?P<key>[^\W\d][\w.-]{0,127})"))
        elements = list[tuple[str, JSON]]()
        while (opened := opening.match(lexed.syntax, offset, stop)) is not None:
            key = opened["key"]
            ends, inner = loose(self.close) + re.escape(key) + loose(self.end), self._within(schema, key)
            if self.cdata and lexed.syntax.startswith(CDATA[0], opened.end()):
                closed, text = section(lexed, opened.end(), ends)
                closed = closed if closed is not None and closed.end() <= stop else None
                elements.append((key, by_schema(text, inner, self.null)))
            else:
                closed = self._closing(lexed, key, re.compile(ends), opened.end(), stop)
                end = closed.start() if closed is not None else opened.end()
                elements.append((key, self._value(lexed, opened.end(), end, inner, depth)))
                if call_close and runs_on(lexed, opened.end(), end, call_close, self._opening(re.escape(key))):
                    closed = None
            if closed is None:
                return elements, offset, f"the argument {key!r} is not closed"
            offset = closed.end()
        return elements, offset, ""

    def _closing(self, lexed: Lexed, key: str, ends: re.Pattern[str], offset: int, stop: int) -> re.Match[str] | None:
        """The match of an element's closing tag. If nesting is possible, nested elements with the same tag are
        skipped."""
        begins = re.compile(self._opening(re.escape(key)))
        closed = ends.search(lexed.syntax, offset, stop)
        if not self.nested:
            return closed
        inner = len(begins.findall(lexed.syntax, offset, closed.start())) if closed else 0
        while closed is not None and inner:
            following = ends.search(lexed.syntax, closed.end(), stop)
            inner += len(begins.findall(lexed.syntax, closed.end(), following.start())) - 1 if following else 0
            closed = following
        return closed

    def _opening(self, key: str) -> str:
        return loose(self.open) + key + loose(self.between)

    def _value(self, lexed: Lexed, offset: int, stop: int, schema: Schema, depth: int) -> JSON:
        if self.nested and depth < _DEPTH and (schema.kinds is None or schema.kinds & {"object", "array"}):
            inner = self._inner(lexed, offset, stop, schema, depth)
            if inner is not None:
                return inner
        text = lexed.text[offset:stop].removeprefix(_space(self.between[::-1])[::-1]).removesuffix(_space(self.close))
        return by_schema(html.unescape(text) if self.escaped else text, schema, self.null)

    def _inner(self, lexed: Lexed, offset: int, stop: int, schema: Schema, depth: int) -> JSON:
        """Read an object or list that is written as elements. None if there is text outside of elements."""
        inner, end, error = self._elements(lexed, offset, stop, schema, depth + 1)
        if not inner or error or lexed.text[end:stop].strip():
            return None
        values = [value for key, value in inner if key == self.item]
        return values if len(values) == len(inner) else dict(inner)

    def _within(self, schema: Schema, key: str) -> Schema:
        """The schema of the value under an object's key, or of a list's elements."""
        if key == self.item and key not in schema.keys and (schema.kinds is None or "array" in schema.kinds):
            return schema.items
        return schema.within(key)


def learn(probes: Spelled) -> Learned | None:
    """Learn the format from calls in the template's text, by keys before and after their values. None for another
    format."""
    regions, marks = _regions(probes.texts)
    if len(marks) != 1:
        return None
    between, close, apart = marks.pop()
    (start, stop), text = regions[0][0], probes.texts[0]
    opening = spelled.common_end(text[:start], apart)
    if opening.startswith(between.strip()):  # it ends the tag before, as it does within an element
        opening = opening.removeprefix(between.strip())
    end = spelled.common_start(apart[: len(apart) - len(opening)], text[stop:])
    if not (opening and between and close.strip()):
        return None
    regions = [[(a - len(opening), b + len(end)) for a, b in row] for row in regions]
    leaf = probes.typed({_INNER: _LEAF})
    nested = bool(re.search(rf"{re.escape(opening)}{_INNER}{re.escape(between)}{_LEAF}", leaf))
    item = re.search(rf"{re.escape(opening)}(\w+){re.escape(between)}{_LEAVES[0]}", probes.typed(_LEAVES))
    list_item = item[1] if item and item[1] != spelled.words(0)[1] else ""
    escaped = "&lt;" in probes.typed("<")
    cdata = f"{CDATA[0]}<{CDATA[1]}" in probes.typed("<")
    null = null_in(probes)
    return AsKeyTags(opening, between, close, end, nested, list_item, escaped, cdata, null), regions


def _regions(texts: Sequence[str]) -> tuple[Regions, set[tuple[str, ...]]]:
    """The spans of the arguments, and the texts between key and value, after a value, and between arguments.

    No texts if the words of a call are not in this order.
    """
    regions, marks = Regions(), set[tuple[str, ...]]()
    for n, text in enumerate(texts):
        matches = [_search(text, i) for i in range(n + 1)]
        regions.append([match.span() for match in matches if match])
        marks |= {match.groups() if match else () for match in matches}
    return regions, set() if () in marks else marks


def _search(text: str, i: int) -> re.Match[str] | None:
    """Search the arguments of the i-th call in a text."""
    _, key, value, other, second = spelled.words(i)
    mark = r"(\W|\W.{0,60}?\W)"  # it may contain words, as in ]<]ns[>[
    return re.search(rf"{key}{mark}{value}{mark}{key}{mark}{other}\1{second}\2{other}", text, re.DOTALL)


def _space(marker: str) -> str:
    """The whitespace at the start of a marker."""
    return marker[: len(marker) - len(marker.lstrip())]
