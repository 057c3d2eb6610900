"""Tool calls in a turn's text: the reading of a format, and the block around calls."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol, TypeAlias

from agentrl.render.read.lexer import Lexed, has_tag, is_distinct, is_tag, loose, pieces
from agentrl.render.read.schema import Schema
from agentrl.types import JSON, ToolSpec

Types: TypeAlias = Mapping[str, Schema]
"""The JSON schema of each tool's arguments."""

CALLS_AT_MOST = 64
"""Calls in a turn. Later calls are not read. The limit bounds the cost of a model that repeats a marker thousands of
times."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A call in `text[start:stop]`. `error` is the reason if the call is malformed."""

    start: int
    stop: int
    raw: str
    name: str = ""
    arguments: Mapping[str, JSON] | None = None
    id: str = ""
    error: str | None = None


class Calls(Protocol):
    """The spelling of single calls. `read` never raises: an unreadable call is an Attempt with an error."""

    @property
    def open(self) -> str:
        """The marker at the start of each call; may be empty."""
        ...

    @property
    def close(self) -> str:
        """The marker at the end of each call; may be empty."""
        ...

    @property
    def markers(self) -> tuple[str, ...]:
        """Markers that a Lexer must distinguish from look-alikes."""
        ...

    def find(self, lexed: Lexed, offset: int) -> int | None:
        """The place of the next opening. Content begins at `offset`: the start of the turn, or the end of a call."""
        ...

    def read(self, lexed: Lexed, offset: int, types: Types) -> Attempt:
        """The call that opens at `offset`."""
        ...

    def named(self, names: str) -> str:
        """A regular expression for the start of a call of these tools. `names` is a pattern for the names."""
        ...

    def bind(self, names: Sequence[str]) -> Calls:
        """The same format, for calls of tools with these names."""
        ...


@dataclass(frozen=True, slots=True)
class Block:
    """Calls in a row, between `open` and `close` if the format has these markers: `[TOOL_CALLS][` call, call `]`."""

    calls: Calls
    open: str = ""
    close: str = ""
    lead: str = ""
    """The part of the first call in the generation prompt (functionary's `>>>`)."""
    whole: bool = False
    """The first tag of `open` begins other parts of a turn too: only the whole marker opens a block."""
    behind_text: bool = False
    """The template writes calls after the content. So bare calls are searched there too, by `names`."""
    names: tuple[str, ...] = ()
    """The tools of this episode."""
    others: tuple[Block, ...] = ()
    """Other spellings by the same models, read where this spelling does not match."""

    @property
    def markers(self) -> tuple[str, ...]:
        """Markers that a Lexer must distinguish from look-alikes."""
        others = (marker for block in self.others for marker in block.markers)
        return tuple(filter(None, (self.open, self.close, *self.calls.markers, *others)))

    def bind(self, names: Sequence[str]) -> Block:
        """The same block, for calls of tools with these names: the names distinguish a call from text."""
        others = tuple(block.bind(names) for block in self.others)
        return replace(self, names=tuple(names), calls=self.calls.bind(names), others=others)

    def find(self, lexed: Lexed, offset: int) -> int | None:
        """The next block's opening, in any spelling."""
        first = self._find(lexed, offset)
        for block in self.others:
            start = block.find(lexed, offset)
            if start is not None and (first is None or start < first):
                first = start
        return first

    def _find(self, lexed: Lexed, offset: int) -> int | None:
        """The next block's opening. A call outside any block also counts if calls have their own markers."""
        start = self._opens(lexed, offset) if self.open else None
        if not self.open or self.calls.open:
            call = self.calls.find(lexed, offset)
            start = call if start is None else start if call is None else min(call, start)
        return self._named(lexed, offset) if start is None and self.behind_text and self.names else start

    def _named(self, lexed: Lexed, offset: int) -> int | None:
        """The start of a call known only by the name of its tool."""
        names = "|".join(map(re.escape, self.names))
        mark = lexed.search(rf"{loose(self.open)}\s*{self.calls.named(names)}", offset)
        return mark.start() if mark else None

    def _opens(self, lexed: Lexed, offset: int) -> int | None:
        """The place of an opening marker, if the marker counts.

        A marker that may occur in plain text opens a block only where content begins and a call follows.
        """
        if is_distinct(self.open):
            mark = lexed.search(loose(self.open) if self.whole else trigger(self.open), offset)
            return mark.start() if mark else None
        opened = re.compile(r"\s*" + loose(self.open)).match(lexed.syntax, offset)
        call = self.calls.find(lexed, opened.end()) if opened else None
        if opened and call is not None and not lexed.syntax[opened.end() : call].strip():
            return offset
        return None

    def read(self, lexed: Lexed, offset: int, types: Types) -> list[Attempt]:
        """The calls of the block that opens at `offset`, at least one. The last call ends with the block."""
        attempts = self._read(lexed, offset, types) if self._find(lexed, offset) == offset else []
        if attempts and not any(attempt.error for attempt in attempts):
            return attempts
        for block in self.others:
            alternative = block.read(lexed, offset, types) if block.find(lexed, offset) == offset else []
            good = bool(alternative) and not any(attempt.error for attempt in alternative)
            if alternative and (not attempts or (good and block._is_closed(lexed, alternative[-1].stop))):
                return alternative
        return attempts or self._read(lexed, offset, types)

    def _is_closed(self, lexed: Lexed, stop: int) -> bool:
        """Whether the text up to `stop` ends as this block does."""
        return not self.close or lexed.syntax[:stop].endswith(pieces(self.close)[-1])

    def _read(self, lexed: Lexed, offset: int, types: Types) -> list[Attempt]:
        """The calls in this spelling."""
        opened = re.compile(_opening(self.open)).match(lexed.syntax, offset) if self.open else None
        begin = opened.end() if opened else offset
        attempts = self._in_a_row(lexed, begin, types, bool(opened))
        if not attempts:
            return [self._unread(lexed, offset, begin)]
        stop = self._stop(lexed, attempts[-1].stop, bool(opened))
        return [*attempts[:-1], replace(attempts[-1], stop=stop)]

    def _in_a_row(self, lexed: Lexed, offset: int, types: Types, opened: bool) -> list[Attempt]:
        """The calls from `offset` on. Outside a block, at most one call."""
        attempts = list[Attempt]()
        while len(attempts) < (CALLS_AT_MOST if opened else 1):
            start = self._next(lexed, offset, opened)
            if start is None:
                break
            attempts.append(self.calls.read(lexed, start, types))
            offset = attempts[-1].stop
        return attempts

    def _stop(self, lexed: Lexed, offset: int, opened: bool) -> int:
        """The end of the block after a last call with the end `offset`. A call outside a block may have the block's
        close.
        """
        if not opened and not self.close:
            return offset
        close = r"[\s;,]*" + _optional(self.close) if opened else r"\s*" + loose(self.close)
        closed = re.compile(close).match(lexed.syntax, offset)
        return closed.end() if closed else offset

    def _unread(self, lexed: Lexed, offset: int, begin: int) -> Attempt:
        """The attempt for a block without the start of a call."""
        end = lexed.search(trigger(self.close), begin) if self.close else None
        stop = end.end() if end else len(lexed.text)
        raw = lexed.text[begin : end.start() if end else stop]
        return Attempt(offset, stop, raw, error="the call cannot be read")

    def _next(self, lexed: Lexed, offset: int, opened: bool) -> int | None:
        """The next call of the block. After the block's opening, only whitespace and separators may precede it."""
        start = self.calls.find(lexed, offset)
        if start is None or (opened and lexed.syntax[offset:start].strip(" \t\r\n;,")):
            return None
        return start


def broken(lexed: Lexed, offset: int, begin: int, seen: int, error: str, markers: tuple[str, str]) -> Attempt:
    """An attempt that ends at its close (searched from `seen` on), else before the next call, else with the turn."""
    opening, close = markers
    closed = lexed.search(loose(close), seen) if close else None
    other = lexed.search(trigger(opening), seen) if opening else None
    if closed and not (other and other.start() < closed.start()):
        return Attempt(offset, closed.end(), lexed.text[begin : closed.start()], error=error)
    end = other.start() if other else len(lexed.text)
    return Attempt(offset, end, lexed.text[begin:end], error="the call is not closed" if close else error)


def types_of(tools: Sequence[ToolSpec]) -> Types:
    """The schemas of all arguments."""
    functions = [tool.get("function") or tool for tool in tools]
    by_name = {f["name"]: f.get("parameters") or {} for f in functions if "name" in f}
    return {name: Schema(parameters, parameters) for name, parameters in by_name.items()}


def stray_marks(block: Block | None, atoms: Mapping[int, str], others: Collection[str]) -> re.Pattern[str]:
    """A regular expression for marks of calls. Where no call is read, such a mark is no answer.

    A mark with its own token (see `atoms`) counts anywhere, because no prose contains the token. The spelling of a
    close counts at the end of the turn, behind a line or a bracket. Marks in `others` also have other uses, and do not
    count.
    """
    ends, marks = set[str](), set[str]()
    for part in (block, *block.others) if block is not None else ():
        closes = [part.close, part.calls.close]
        ends |= {tag for close in closes for tag in pieces(close) if is_tag(tag)}
        marks |= {tag for marker in (part.open, part.calls.open, *closes) for tag in pieces(marker) if is_tag(tag)}
    ends, marks = ends.difference(others), marks.intersection(atoms.values()).difference(others)
    tokens = [re.escape(mark) for mark in sorted(marks)]
    spelled = [rf"(?<=[\n}}\])>]){re.escape(end)}(?=\s*\Z)" for end in sorted(ends - marks)]
    return re.compile("|".join([*tokens, *spelled]) or r"(?!)")


@lru_cache(maxsize=4096)
def trigger(marker: str) -> str:
    """A regular expression for the part of an opening marker that identifies a call: up to the first tag."""
    return loose(head(marker))


def head(marker: str) -> str:
    """The marker up to its first tag, or all of it."""
    parts = pieces(marker)
    first = next((i for i, piece in enumerate(parts) if is_tag(piece)), len(parts) - 1)
    return "".join(parts[: first + 1])


def _opening(marker: str) -> str:
    rest = marker[len(head(marker)) :]
    return rf"\s*{trigger(marker)}\s*" + (_optional(rest) if has_tag(marker) else loose(rest))


def _optional(marker: str) -> str:
    """A regular expression for the marker's pieces in order. Any piece may be missing."""
    return "".join(rf"(?:\s*{loose(piece)})?" for piece in pieces(marker) if not piece.isspace())
