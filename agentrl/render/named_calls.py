"""Tool calls whose name stands outside of their arguments, and the ways in which templates write the latter."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from agentrl.render.calls import Attempt, Types, Unread, broken, json_at, trigger
from agentrl.render.lexer import Lexed, is_tag, loose, pieces
from agentrl.types import JSON

_NAME = r"(?P<name>[^\s<>\[\](){{}}\"',;|=\x00]+{})"
"""Greedy where nothing else ends the name."""
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
class NamedCalls:
    """`open` name `between` arguments `close`: `<function=` name `>` {...} `</function>`.

    In `between`, {id} stands for the call's id and {n} for a number.
    """

    open: str
    between: str
    close: str
    arguments: Arguments

    @property
    def markers(self) -> tuple[str, ...]:
        """What a Lexer must find for `read`."""
        plain = re.sub(r"\{(id|n)\}", " ", self.between)
        return tuple(filter(None, (self.open, plain, self.close, *self.arguments.markers)))

    def find(self, lexed: Lexed, at: int) -> int | None:
        """Where the opening marker's first tag stands; without any tag, a whole header."""
        tagged = any(map(is_tag, pieces(self.open)))
        mark = re.compile(self._framing() + (trigger(self.open) if tagged else self._header())).search(lexed.syntax, at)
        return mark.start() if mark else None

    def read(self, lexed: Lexed, at: int, types: Types) -> Attempt:
        """The call that opens at `at`."""
        header = re.compile(self._framing() + self._header()).match(lexed.syntax, at)
        if header is None:
            begun = re.compile(self._framing() + trigger(self.open)).match(lexed.syntax, at)
            begin = begun.end() if begun else at + 1
            return self._broken(lexed, at, begin, begin, "the call's name cannot be read")
        name, call_id = header["name"], header.groupdict().get("id") or ""
        value, end = self.arguments.read(lexed, header.end(), self.close, types.get(name, {}))
        if isinstance(value, Unread):
            return self._broken(lexed, at, header.start("name"), header.end(), value.reason, name)
        mark = re.compile(r"\s*" + loose(self.close)).match(lexed.syntax, end)
        if mark is None:
            return self._broken(lexed, at, header.start("name"), end, "text after the call's arguments", name)
        raw = lexed.text[header.start("name") : end]
        if not isinstance(value, dict):
            return Attempt(at, mark.end(), raw, name, id=call_id, error="the call's arguments must be a JSON object")
        return Attempt(at, mark.end(), raw, name, value, call_id)

    def _broken(self, lexed: Lexed, at: int, begin: int, seen: int, error: str, name: str = "") -> Attempt:
        found = broken(lexed, at, begin, seen, error, (self.open, self.close))
        return Attempt(found.start, found.stop, found.raw, name, error=found.error)

    def _header(self) -> str:
        """Of what stands between name and arguments, a model may vary all but the last tag."""
        between = "".join(_HOLES.get(part, loose(part)) for part in re.split(r"(\{id\}|\{n\})", self.between) if part)
        tags = [piece for piece in pieces(self.between) if is_tag(piece)]
        if tags and "{" not in self.between:
            between = rf"(?:{between}|(?=[\s<\[])[^{{}}\n\x00]{{0,80}}?{re.escape(tags[-1])})"
        name = _NAME.format("?" if between else "")
        return rf"{loose(self.open)}\s*{name}\s*{between}"

    def _framing(self) -> str:
        """An opening marker without a tag may come behind one of the header's tags: `<|channel|>commentary to=`."""
        tags = [piece for piece in pieces(self.between) if is_tag(piece)]
        if not tags or any(map(is_tag, pieces(self.open))):
            return ""
        return rf"(?:{re.escape(tags[0])}\w*)?\s*"


_HOLES = {"{id}": r"\s*(?P<id>[\w.:-]+)\s*", "{n}": r"\d+"}


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
