"""Arguments written as an object with keys without quotes and special quotes around strings: `{key:<|"|>text<|"|>}`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from agentrl.render.formats import spelled
from agentrl.render.formats.arguments import Learned, Regions
from agentrl.render.formats.spelled import Spelled
from agentrl.render.read.json_value import ParseFailure, json_at
from agentrl.render.read.lexer import Lexed
from agentrl.render.read.schema import Schema

_SPACE = re.compile(r"\s*")


@dataclass(frozen=True, slots=True)
class AsBareKeys:
    """The format of an object with keys without quotes, and with the marker `quote` around strings."""

    quote: str

    @property
    def markers(self) -> tuple[str, ...]:
        return (self.quote,)

    def read(self, lexed: Lexed, offset: int, close: str, schema: Schema) -> tuple[Any, int]:
        space = _SPACE.match(lexed.syntax, offset)
        try:
            return self._value(lexed, space.end() if space else offset)
        except (ValueError, RecursionError) as exc:
            return ParseFailure(f"the call's arguments cannot be read: {exc}"), offset

    def _value(self, lexed: Lexed, offset: int) -> tuple[Any, int]:
        syntax = lexed.syntax
        if syntax.startswith(self.quote, offset):
            end = syntax.find(self.quote, offset + len(self.quote))
            if end < 0:
                raise ValueError("a string is not closed")
            return lexed.text[offset + len(self.quote) : end], end + len(self.quote)
        if syntax.startswith("{", offset):
            return self._items(lexed, offset + 1)
        if syntax.startswith("[", offset):
            return self._list(lexed, offset + 1)
        if syntax.startswith('"', offset):
            value, end = json_at(lexed.text, offset)
            if isinstance(value, ParseFailure):
                raise ValueError(value.reason)
            return value, end
        return _word(lexed, offset)

    def _items(self, lexed: Lexed, offset: int) -> tuple[Any, int]:
        values: dict[str, Any] = {}
        quote = re.escape(self.quote) + '|"'  # some write JSON within a list
        key = re.compile(rf"\s*,?\s*(?:{quote})?([^\s,:{{}}\[\]\"]+?)(?:{quote})?\s*:\s*")
        while (match := key.match(lexed.syntax, offset)) is not None:
            values[match[1]], offset = self._value(lexed, match.end())
        return values, _closed(lexed, offset, "}")

    def _list(self, lexed: Lexed, offset: int) -> tuple[Any, int]:
        values = list[Any]()
        while (item := re.compile(r"\s*,?\s*(?=[^\s,\]])").match(lexed.syntax, offset)) is not None:
            value, offset = self._value(lexed, item.end())
            values.append(value)
        return values, _closed(lexed, offset, "]")


_BARE = re.compile(r"[^\W\d][^,\[\]{}:<>\"\x00\n]{0,200}(?=[,\]}])")
_WORDS = {"true": True, "True": True, "false": False, "False": False, "null": None, "None": None}


def _closed(lexed: Lexed, offset: int, bracket: str) -> int:
    match = re.compile(rf"\s*,?\s*{re.escape(bracket)}").match(lexed.syntax, offset)
    if match is None:
        raise ValueError(f"{bracket!r} is missing")
    return match.end()


def learn(probes: Spelled) -> Learned | None:
    """Learn the format from calls in the template's text, by a brace, a key, a colon and a quote. None for another
    format."""
    regions, quote = Regions(), ""
    for n, text in enumerate(probes.texts):
        regions.append([])
        for i in range(n + 1):
            place = spelled.places(text, i)
            brace = text.rfind("{", 0, place[1]) if place else -1
            if place is None or brace < place[0] or text[brace + 1 : place[1]].strip():
                return None
            quote = text[place[1] + len(spelled.words(i)[1]) : place[2]].strip().removeprefix(":").strip()
            end = text.find("}", place[-1])
            if not quote or end < 0:
                return None
            regions[-1].append((brace, end + 1))
    return AsBareKeys(quote), regions


def _word(lexed: Lexed, offset: int) -> tuple[Any, int]:
    """Read a value without quotes: a word of JSON, a number, or a string that lacks its quotes."""
    word = re.compile(r"[^\s,\[\]{}:]+").match(lexed.syntax, offset)
    if word is None:
        raise ValueError("a value is missing")
    if word.group() in _WORDS:
        return _WORDS[word.group()], word.end()
    value, end = json_at(lexed.text, offset)
    if not isinstance(value, ParseFailure) and end == word.end():
        return value, end
    bare = _BARE.match(lexed.syntax, offset)  # a string whose quotes were left out
    if bare is None:
        raise ValueError("a value is missing")
    return bare.group().strip(), bare.end()
