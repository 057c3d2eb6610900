"""The format in which each call is a JSON object: `{"name": "search", "arguments": {...}}`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentrl.render.formats import spelled
from agentrl.render.formats.spelled import Spelled
from agentrl.render.read.calls import Attempt, Block, Types, broken
from agentrl.render.read.json_value import ParseFailure, json_at
from agentrl.render.read.lexer import Lexed, is_distinct, loose

PYTHON_TAG = "<|python_tag|>"
"""Llama 3 models may sample this marker before a call, although their template does not write it."""
_BETWEEN = re.compile(r"[\s;,]*")

_BEFORE = r'(?:"[^"\s]*"\s*:\s*(?:"[^"\s]*"\s*,\s*|\{\s*)){0,4}?'
"""The text that may precede a call's name: `"type": "function", `."""
_SYNONYMS = ("arguments", "parameters")
"""Keys for the arguments. Models write either key, regardless of the template."""
_KEYS = frozenset({"name", "type", "id", *_SYNONYMS})
"""All keys that a call without markers may have."""

Path = tuple[str, ...]
"""Keys from the outermost object to a value."""


@dataclass(frozen=True, slots=True)
class JsonCalls:
    """Calls that are JSON objects between the markers `open` and `close`. Without markers, the object must be at the
    start of the turn.

    If `name_at` is empty, the innermost object has a single key: the name, with the arguments as its value.
    """

    open: str
    close: str
    name_at: Path = ("name",)
    arguments_at: Path = ("arguments",)
    id_at: Path = ()
    first_key: str = "name"
    in_block: bool = False
    as_text: bool = False
    """Whether the arguments are JSON text in a JSON string."""
    names: tuple[str, ...] = ()
    """The names of the episode's tools."""

    @property
    def markers(self) -> tuple[str, ...]:
        """Markers that a Lexer must find for `read`."""
        if self.open:
            return (self.open, self.close) if self.close else (self.open,)
        return () if self.in_block else (PYTHON_TAG,)

    def find(self, lexed: Lexed, offset: int) -> int | None:
        """The first call from `offset` on. Without a marker, only a call exactly at `offset` counts."""
        if self.open:
            mark = lexed.search(loose(self.open), offset)
            return mark.start() if mark else None
        space = _BETWEEN.match(lexed.text, offset)
        start = space.end() if space else offset
        if lexed.syntax.startswith("{", start) and (self.in_block or self._is_call(lexed.text, start)):
            return offset
        tag = None if self.in_block else lexed.search(re.escape(PYTHON_TAG), offset)
        return tag.start() if tag else None

    def bind(self, names: Sequence[str]) -> JsonCalls:
        """The same format, for calls of tools with these names."""
        return replace(self, names=tuple(names))

    def _is_call(self, text: str, offset: int) -> bool:
        """Whether an object without markers is a call: it has a name and arguments, or the name of a known tool.

        An object with arguments and no keys beyond a call's is a call without a name. Invalid JSON is a malformed call
        under the same conditions.
        """
        value, _ = json_at(text, offset)
        if isinstance(value, ParseFailure):
            return self._shows_a_call(text, offset)
        name, arguments = self._name_and_arguments(value)
        if not isinstance(name, str) or not name:
            return bool(arguments) and isinstance(arguments, dict) and bool(self.names) and self._has_no_more(value)
        return name in self.names or (isinstance(arguments, dict | str) and bool(self.name_at or not self.names))

    def _has_no_more(self, value: Any) -> bool:
        """Whether an object has only a call's keys. Such an object is a call without a name, and no answer."""
        return bool(self.name_at) and value.keys() <= _KEYS | {*self.name_at, *self.arguments_at, *self.id_at}

    def _shows_a_call(self, text: str, offset: int) -> bool:
        """Whether text with invalid JSON begins like a call."""
        names = "|".join(map(re.escape, self.names)) or r"[^\"\s]*"
        key = rf'"{re.escape(self.name_at[-1])}"\s*:\s*' if self.name_at else ""
        named = re.compile(rf'\{{\s*{_BEFORE}{key}"(?:{names})"\s*(?:[:,}}]|\Z)').match(text, offset)
        return named is not None and (bool(self.names) or any(f'"{word}"' in text for word in _SYNONYMS))

    def read(self, lexed: Lexed, offset: int, types: Types) -> Attempt:
        """The call that opens at `offset`."""
        opening = re.compile(loose(self.open or PYTHON_TAG)).match(lexed.syntax, offset)
        begin = opening.end() if opening else offset
        space = _BETWEEN.match(lexed.text, begin)
        start = space.end() if space else begin
        value, end = json_at(lexed.text, start)
        if isinstance(value, ParseFailure):
            return self._broken(lexed, offset, begin, begin, f"the call is not valid JSON: {value.reason}")
        if not self.close:
            return self._check(value, offset, end, lexed.text[start:end], types)
        mark = lexed.search(loose(self.close), end)
        if mark is None or lexed.text[end : mark.start()].strip():
            return self._broken(lexed, offset, begin, end, "text after the call's JSON object")
        return self._check(value, offset, mark.end(), lexed.text[begin : mark.start()], types)

    def _broken(self, lexed: Lexed, offset: int, begin: int, seen: int, error: str) -> Attempt:
        return broken(lexed, offset, begin, seen, error, (self.open, self.close))

    def _check(self, value: Any, start: int, stop: int, raw: str, types: Types) -> Attempt:
        if not isinstance(value, dict):
            return Attempt(start, stop, raw, error="the call is not a JSON object")
        sampled_id = _at(value, self.id_at) if self.id_at else None
        call_id = sampled_id if isinstance(sampled_id, str) else ""
        name, arguments = self._name_and_arguments(value)
        if not isinstance(name, str) or not name:
            return Attempt(start, stop, raw, id=call_id, error=f'the call has no "{".".join(self.name_at) or "name"}"')
        if arguments is None and name in types and not types[name].requires:
            arguments = {}
        if not isinstance(arguments, dict):
            kind = "a JSON object" + (" as text" if self.as_text else "")
            error = f'the call\'s "{".".join(self.arguments_at) or "arguments"}" must be {kind}'
            return Attempt(start, stop, raw, name, id=call_id, error=error)
        return Attempt(start, stop, raw, name, arguments, call_id)

    def _name_and_arguments(self, value: Any) -> tuple[Any, Any]:
        """The values at `name_at` and `arguments_at`, of any type."""
        name, arguments = _at(value, self.name_at), _at(value, self.arguments_at)
        if arguments is None and self.arguments_at and self.arguments_at[-1] in _SYNONYMS:
            candidates = (_at(value, (*self.arguments_at[:-1], synonym)) for synonym in _SYNONYMS)
            arguments = next((candidate for candidate in candidates if candidate is not None), None)
        if not self.name_at:
            name, arguments = next(iter(arguments.items())) if _is_single(arguments) else (None, None)
        if self.as_text and isinstance(arguments, str):
            arguments, _ = json_at(arguments, 0)
        return name, arguments

    def named(self, names: str) -> str:
        """See `Calls.named`. The pattern skips the keys before the name."""
        return rf'{loose(self.open)}\s*\{{\s*{_BEFORE}"[^"\s]*"\s*:\s*"(?:{names})"'


def learn(probes: Spelled) -> Iterator[Block]:
    """Learn the format from calls in the template's text, and yield its Block. Name and arguments may be at any depth
    of an object. Yields nothing for another format."""
    matches = [_objects(text) for text in probes.texts]
    if any(len(objects) != n + 1 for n, objects in enumerate(matches)):
        return
    spans = [[(start, end) for start, end, _ in objects] for objects in matches]
    opening, call_open, call_close, closing, in_block = _block(spelled.wrap(*spelled.around(probes.texts, spans)))
    value = matches[0][0][2]
    arguments_at = _path(value, spelled.arguments(0)) or ()
    as_text = isinstance(_at(value, arguments_at), str)
    name_at = _path(value, spelled.name(0)) or ()
    if not name_at:
        arguments_at = arguments_at[:-1]  # the name itself is the key
    id_at = _path(value, spelled.call_id(0)) or ()
    first_key = next(iter(value))
    yield Block(
        JsonCalls(call_open, call_close, name_at, arguments_at, id_at, first_key, in_block, as_text), opening, closing
    )


def _block(wrap: spelled.Wrap) -> tuple[str, str, str, str, bool]:
    """The four texts of a Wrap as markers, and whether an object without markers of its own is a call, because the
    block has markers."""
    opening, call_open, call_close, closing = wrap
    if not opening and call_open.endswith("["):  # one call at a time, in a list of one
        opening, call_open, call_close, closing = call_open, "", "", call_close
    # a bracket alone opens a block only before a call
    return opening, call_open, call_close, closing, bool(opening and (call_open or is_distinct(opening)))


def _objects(text: str) -> list[tuple[int, int, dict[str, Any]]]:
    """The outermost JSON objects in a text that hold the name and the arguments of a known call."""
    matches, offset = list[tuple[int, int, dict[str, Any]]](), 0
    while (offset := text.find("{", offset)) >= 0:
        value, end = json_at(text, offset)
        i = len(matches)
        path = _path(value, spelled.arguments(i)) if isinstance(value, dict) else None
        holds = path is not None and (_path(value, spelled.name(i)) is not None or spelled.name(i) == path[-1])
        if holds:
            matches.append((offset, end, value))
        offset = end if holds else offset + 1
    return matches


def _path(value: Any, target: Any) -> Path | None:
    """The path of keys to the value `target`, or to its JSON text."""
    for key, item in value.items():
        if item == target or (isinstance(target, dict) and isinstance(item, str) and json_at(item, 0)[0] == target):
            return (key,)
        inner = _path(item, target) if isinstance(item, dict) else None
        if inner is not None:
            return (key, *inner)
    return None


def _at(value: Any, path: Path) -> Any:
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _is_single(value: Any) -> bool:
    return isinstance(value, dict) and len(value) == 1
