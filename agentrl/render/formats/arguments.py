"""The ways in which arguments are spelled behind a call's name."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from agentrl.render.read.json_value import Unread, json_at
from agentrl.render.read.lexer import Lexed, loose
from agentrl.types import JSON

_SPACE = re.compile(r"\s*")


class Arguments(Protocol):
    """How a call's arguments are spelled."""

    @property
    def markers(self) -> tuple[str, ...]:
        """What a Lexer must tell from look-alikes."""
        ...

    def read(self, lexed: Lexed, at: int, close: str, types: Mapping[str, Any]) -> tuple[Any, int]:
        """A mapping (or an Unread) and where it ends. `close` is what follows, `types` the arguments' schemas."""
        ...


@dataclass(frozen=True, slots=True)
class AsJson:
    """One JSON object."""

    @property
    def markers(self) -> tuple[str, ...]:
        return ()

    def read(self, lexed: Lexed, at: int, close: str, types: Mapping[str, Any]) -> tuple[Any, int]:
        space = _SPACE.match(lexed.text, at)
        value, end = json_at(lexed.text, space.end() if space else at)
        return (Unread(f"the call is not valid JSON: {value.reason}") if isinstance(value, Unread) else value), end


@dataclass(frozen=True, slots=True)
class AsPairs:
    """`open` key `between` value `close`, for each argument: `<parameter=` key `>` value `</parameter>`.

    Strings are not quoted, so that a value's schema decides: a string is taken as it stands, anything else is read as
    JSON, or as Python where a template writes it so.
    """

    open: str
    between: str
    close: str

    @property
    def markers(self) -> tuple[str, ...]:
        return (self.open, self.between, self.close)

    def read(self, lexed: Lexed, at: int, close: str, types: Mapping[str, Any]) -> tuple[Any, int]:
        key = re.compile(rf"\s*{loose(self.open)}\s*(?P<key>[^\s<>\x00]+?)\s*{loose(self.between)}")
        follows = "|".join(filter(None, (loose(self.open), loose(close), r"\Z")))
        end = re.compile(rf"{loose(self.close)}(?=\s*(?:{follows}))")
        before, after = _edge(self.between[::-1])[::-1], _edge(self.close)
        values: dict[str, JSON] = {}
        while (opened := key.match(lexed.syntax, at)) is not None:
            closed = end.search(lexed.syntax, opened.end())
            if closed is None:
                return Unread(f"the argument {opened['key']!r} is not closed"), at
            text = lexed.text[opened.end() : closed.start()]
            text = text.removeprefix(before).removesuffix(after)
            values[opened["key"]] = _typed(text, types.get(opened["key"]))
            at = closed.end()
        return values, at


@dataclass(frozen=True, slots=True)
class AsBareKeys:
    """An object whose keys are bare words and whose strings stand between `quote` marks: {key:<|"|>text<|"|>}."""

    quote: str

    @property
    def markers(self) -> tuple[str, ...]:
        return (self.quote,)

    def read(self, lexed: Lexed, at: int, close: str, types: Mapping[str, Any]) -> tuple[Any, int]:
        space = _SPACE.match(lexed.syntax, at)
        try:
            return self._value(lexed, space.end() if space else at)
        except (ValueError, RecursionError) as exc:
            return Unread(f"the call's arguments cannot be read: {exc}"), at

    def _value(self, lexed: Lexed, at: int) -> tuple[Any, int]:
        syntax = lexed.syntax
        if syntax.startswith(self.quote, at):
            end = syntax.find(self.quote, at + len(self.quote))
            if end < 0:
                raise ValueError("a string is not closed")
            return lexed.text[at + len(self.quote) : end], end + len(self.quote)
        if syntax.startswith("{", at):
            return self._items(lexed, at + 1)
        if syntax.startswith("[", at):
            return self._list(lexed, at + 1)
        word = re.compile(r"[^\s,\[\]{}:]+").match(syntax, at)
        if word is None:
            raise ValueError("a value is missing")
        return _WORDS.get(word.group()) if word.group() in _WORDS else json.loads(word.group()), word.end()

    def _items(self, lexed: Lexed, at: int) -> tuple[Any, int]:
        values: dict[str, Any] = {}
        key = re.compile(rf"\s*,?\s*(?:{re.escape(self.quote)})?([^\s,:{{}}\[\]]+?)(?:{re.escape(self.quote)})?\s*:\s*")
        while (found := key.match(lexed.syntax, at)) is not None:
            values[found[1]], at = self._value(lexed, found.end())
        return values, _closed(lexed, at, "}")

    def _list(self, lexed: Lexed, at: int) -> tuple[Any, int]:
        values = list[Any]()
        while (item := re.compile(r"\s*,?\s*(?=[^\s,\]])").match(lexed.syntax, at)) is not None:
            value, at = self._value(lexed, item.end())
            values.append(value)
        return values, _closed(lexed, at, "]")


_WORDS = {"true": True, "True": True, "false": False, "False": False, "null": None, "None": None}


def _closed(lexed: Lexed, at: int, bracket: str) -> int:
    found = re.compile(rf"\s*,?\s*{re.escape(bracket)}").match(lexed.syntax, at)
    if found is None:
        raise ValueError(f"{bracket!r} is missing")
    return found.end()


def _edge(marker: str) -> str:
    """The whitespace with which a marker begins."""
    return marker[: len(marker) - len(marker.lstrip())]


def _typed(text: str, schema: Mapping[str, Any] | None) -> JSON:
    if schema is not None and schema.get("type") == "string":
        return text
    value, end = json_at(text, 0)
    if not isinstance(value, Unread) and not text[end:].strip():
        return value
    try:
        value = ast.literal_eval(text.strip())
        json.dumps(value)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return text
    return value
