"""Tool calls in a turn's text: the block they stand in, and calls that are one JSON object each."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn, Protocol, TypeAlias

from agentrl.render.lexer import Lexed, is_tag, loose, pieces
from agentrl.types import JSON, ToolSpec

PYTHON_TAG = "<|python_tag|>"
"""Llama 3 models may sample it before a call although their template does not write it."""

Types: TypeAlias = Mapping[str, Mapping[str, Any]]
"""The JSON schema of each argument, by tool and argument: for formats that do not quote strings."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A call found at `text[start:stop]`; `error` says why it is malformed."""

    start: int
    stop: int
    raw: str
    name: str = ""
    arguments: Mapping[str, JSON] | None = None
    id: str = ""
    error: str | None = None


class Calls(Protocol):
    """How single calls are spelled. `read` never raises: what cannot be read is an Attempt with its error."""

    @property
    def open(self) -> str:
        """The marker with which each call begins; may be empty."""
        ...

    @property
    def markers(self) -> tuple[str, ...]:
        """What a Lexer must tell from look-alikes."""
        ...

    def find(self, lexed: Lexed, at: int) -> int | None:
        """Where the next call opens, from `at` on; `at` is where content begins: the start, or behind a call."""
        ...

    def read(self, lexed: Lexed, at: int, types: Types) -> Attempt:
        """The call that opens at `at`."""
        ...


@dataclass(frozen=True, slots=True)
class Block:
    """Calls in a row, between `open` and `close` if the format has such: `[TOOL_CALLS][` call, call `]`."""

    calls: Calls
    open: str = ""
    close: str = ""

    @property
    def markers(self) -> tuple[str, ...]:
        """What a Lexer must tell from look-alikes."""
        return tuple(filter(None, (self.open, self.close, *self.calls.markers)))

    def find(self, lexed: Lexed, at: int) -> int | None:
        """Where the next block opens; a call out of any block is one too where calls have markers of their own."""
        mark = _search(trigger(self.open), lexed, at) if self.open else None
        found = [mark.start()] if mark else []
        if not self.open or self.calls.open:
            call = self.calls.find(lexed, at)
            found += [] if call is None else [call]
        return min(found, default=None)

    def read(self, lexed: Lexed, at: int, types: Types) -> list[Attempt]:
        """The calls of the block that opens at `at`: one at least, and never raises. The last one ends the block."""
        opened = re.compile(_opening(self.open)).match(lexed.syntax, at) if self.open else None
        begin = opened.end() if opened else at
        attempts, here = list[Attempt](), begin
        while (start := self._next(lexed, here, bool(opened))) is not None:
            attempts.append(self.calls.read(lexed, start, types))
            here = attempts[-1].stop
            if not opened:
                return attempts
        close = re.compile(r"[\s;,]*" + _optional(self.close)).match(lexed.syntax, here) if opened else None
        stop = close.end() if close else here
        if not attempts:
            end = _search(trigger(self.close), lexed, begin) if self.close else None
            stop = end.end() if end else len(lexed.text)
            raw = lexed.text[begin : end.start() if end else stop]
            attempts = [Attempt(at, stop, raw, error="the call cannot be read")]
        return [*attempts[:-1], replace(attempts[-1], stop=stop)]

    def _next(self, lexed: Lexed, at: int, opened: bool) -> int | None:
        """The next call of the block: it stands right here, or at `at` itself if it has no markers."""
        found = self.calls.find(lexed, at)
        if found is None or (opened and lexed.syntax[at:found].strip(" \t\r\n;,")):
            return None
        return found


@dataclass(frozen=True, slots=True)
class JsonCalls:
    """One JSON object a call, between `open` and `close`; with neither, the object itself begins the turn.

    Without `name_key` the object has one key, the name, and its value is the arguments.
    """

    open: str
    close: str
    name_key: str = "name"
    arguments_key: str = "arguments"
    id_key: str = ""
    in_block: bool = False

    @property
    def markers(self) -> tuple[str, ...]:
        """What a Lexer must find for `read`."""
        if self.open:
            return (self.open, self.close) if self.close else (self.open,)
        return () if self.in_block else (PYTHON_TAG,)

    def find(self, lexed: Lexed, at: int) -> int | None:
        """With no marker a call is found at `at` only."""
        if self.open:
            mark = _search(loose(self.open), lexed, at)
            return mark.start() if mark else None
        tag = re.compile(r"\s*" + re.escape(PYTHON_TAG)).match(lexed.syntax, at)
        if tag and not self.in_block:
            return tag.end() - len(PYTHON_TAG)
        key = re.escape(self.name_key) if self.name_key else r"[^\"\s]+"
        begins = r"\{" if self.in_block else rf'\{{\s*"{key}"\s*:'
        return at if re.compile(r"[\s;,]*" + begins).match(lexed.text, at) else None

    def read(self, lexed: Lexed, at: int, types: Types) -> Attempt:
        """The call that opens at `at`."""
        opening = re.compile(loose(self.open or PYTHON_TAG)).match(lexed.syntax, at)
        begin = opening.end() if opening else at
        text = lexed.text
        start = begin + len(text[begin:]) - len(text[begin:].lstrip(" \t\r\n;,"))
        value, end = json_at(text, start)
        if isinstance(value, Unread):
            return self._broken(lexed, at, begin, begin, f"the call is not valid JSON: {value.reason}")
        if not self.close:
            return self._check(value, at, end, text[start:end])
        mark = _search(loose(self.close), lexed, end)
        if mark is None or text[end : mark.start()].strip():
            return self._broken(lexed, at, begin, end, "text after the call's JSON object")
        return self._check(value, at, mark.end(), text[begin : mark.start()])

    def _broken(self, lexed: Lexed, at: int, begin: int, seen: int, error: str) -> Attempt:
        return broken(lexed, at, begin, seen, error, (self.open, self.close))

    def _check(self, value: Any, start: int, stop: int, raw: str) -> Attempt:
        if not isinstance(value, dict):
            return Attempt(start, stop, raw, error="the call is not a JSON object")
        if not self.name_key:
            value = next(({"name": k, "arguments": v} for k, v in value.items() if len(value) == 1), {})
        name_key, arguments_key = (self.name_key or "name"), (self.arguments_key or "arguments")
        name, arguments = value.get(name_key), value.get(arguments_key)
        sampled_id = value.get(self.id_key) if self.id_key else None
        call_id = sampled_id if isinstance(sampled_id, str) else ""
        if not isinstance(name, str) or not name:
            return Attempt(start, stop, raw, id=call_id, error=f'the call has no "{name_key}"')
        if not isinstance(arguments, dict):
            error = f'the call\'s "{arguments_key}" must be a JSON object'
            return Attempt(start, stop, raw, name, id=call_id, error=error)
        return Attempt(start, stop, raw, name, arguments, call_id)

    def write(self, name: str, arguments: Mapping[str, JSON]) -> str:
        """A call in this format."""
        body = json.dumps({self.name_key: name, self.arguments_key: arguments}, ensure_ascii=False)
        return f"{self.open}\n{body}\n{self.close}" if self.open else body


CONVENTION = JsonCalls("<tool_call>", "</tool_call>")
"""For a template that writes no calls itself: the most widely trained convention."""


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


def broken(lexed: Lexed, at: int, begin: int, seen: int, error: str, markers: tuple[str, str]) -> Attempt:
    """An attempt that ends at its close (looked for from `seen` on), else before the next call, else with the turn."""
    opening, close = markers
    closed = _search(loose(close), lexed, seen) if close else None
    other = _search(trigger(opening), lexed, seen) if opening else None
    if closed and not (other and other.start() < closed.start()):
        return Attempt(at, closed.end(), lexed.text[begin : closed.start()], error=error)
    end = other.start() if other else len(lexed.text)
    return Attempt(at, end, lexed.text[begin:end], error="the call is not closed" if close else error)


def types_of(tools: Sequence[ToolSpec]) -> Types:
    """The schemas of all arguments."""
    functions = [tool.get("function") or tool for tool in tools]
    return {f["name"]: (f.get("parameters") or {}).get("properties") or {} for f in functions if "name" in f}


def trigger(marker: str) -> str:
    """A regular expression for the part of an opening marker that gives a call away: up to its first tag."""
    return loose(head(marker))


def head(marker: str) -> str:
    """The marker up to its first tag, or all of it."""
    parts = pieces(marker)
    first = next((i for i, piece in enumerate(parts) if is_tag(piece)), len(parts) - 1)
    return "".join(parts[: first + 1])


def _opening(marker: str) -> str:
    return rf"\s*{trigger(marker)}\s*{_optional(marker[len(head(marker)) :])}"


def _optional(marker: str) -> str:
    """A regular expression for the marker's pieces in their order, any of which may be missing."""
    return "".join(rf"(?:\s*{re.escape(piece)})?" for piece in pieces(marker) if not piece.isspace())


def _search(pattern: str, lexed: Lexed, at: int) -> re.Match[str] | None:
    return re.compile(pattern).search(lexed.syntax, at) if pattern else None


def _not_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_not_json)
