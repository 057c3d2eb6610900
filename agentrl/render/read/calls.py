"""Tool calls in a turn's text: the interface of a format of calls, and the block around several calls."""

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
"""Tool name -> JSON schema of the tool's arguments."""

CALLS_AT_MOST = 64
"""Maximum number of calls of a turn. Later calls are not read. The limit bounds the cost if a model repeats a marker
thousands of times."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A call that was read from `text[start:stop]`. `error` is the reason if the call is malformed."""

    start: int
    stop: int
    raw: str
    name: str = ""
    arguments: Mapping[str, JSON] | None = None
    id: str = ""
    error: str | None = None


class Calls(Protocol):
    """A format of single calls. `read` never raises: an unreadable call is an Attempt with an error."""

    @property
    def open(self) -> str:
        """The marker at the start of each call. Empty for a format without this marker."""
        ...

    @property
    def close(self) -> str:
        """The marker at the end of each call. Empty for a format without this marker."""
        ...

    @property
    def markers(self) -> tuple[str, ...]:
        """Markers that a Lexer must distinguish from look-alikes."""
        ...

    def find(self, lexed: Lexed, offset: int) -> int | None:
        """The offset of the next call. `offset` is where content begins: the start of the turn, or the end of a
        call."""
        ...

    def read(self, lexed: Lexed, offset: int, types: Types) -> Attempt:
        """The call that opens at `offset`."""
        ...

    def named(self, names: str) -> str:
        """A regular expression for the start of a call of certain tools. `names` is a pattern for the tools' names."""
        ...

    def bind(self, names: Sequence[str]) -> Calls:
        """The same format, for calls of tools with these names."""
        ...


@dataclass(frozen=True, slots=True)
class Block:
    """A format of one or more calls, between `open` and `close` if the format has these markers: `[TOOL_CALLS][` call,
    call `]`."""

    calls: Calls
    open: str = ""
    close: str = ""
    lead: str = ""
    """The beginning of the first call that the generation prompt already holds (functionary's `>>>`)."""
    whole: bool = False
    """Whether the first tag of `open` also begins other parts of a turn, so that only the whole marker opens a
    block."""
    behind_text: bool = False
    """Whether the template writes calls after the content. Calls without markers are then also searched there, by
    `names`."""
    names: tuple[str, ...] = ()
    """The names of the episode's tools."""
    others: tuple[Block, ...] = ()
    """Other formats that the same models write, read where this format does not match."""

    @property
    def markers(self) -> tuple[str, ...]:
        """Markers that a Lexer must distinguish from look-alikes."""
        others = (marker for block in self.others for marker in block.markers)
        return tuple(filter(None, (self.open, self.close, *self.calls.markers, *others)))

    def bind(self, names: Sequence[str]) -> Block:
        """The same block for tools with the names, which distinguish a call from text."""
        others = tuple(block.bind(names) for block in self.others)
        return replace(self, names=tuple(names), calls=self.calls.bind(names), others=others)

    def find(self, lexed: Lexed, offset: int) -> int | None:
        """The offset of the next block, in this format or in `others`."""
        first = self._find(lexed, offset)
        for block in self.others:
            start = block.find(lexed, offset)
            if start is not None and (first is None or start < first):
                first = start
        return first

    def _find(self, lexed: Lexed, offset: int) -> int | None:
        """The offset of the next block in this format. A call outside of a block also counts if calls have their own
        markers."""
        start = self._opens(lexed, offset) if self.open else None
        if not self.open or self.calls.open:
            call = self.calls.find(lexed, offset)
            start = call if start is None else start if call is None else min(call, start)
        return self._named(lexed, offset) if start is None and self.behind_text and self.names else start

    def _named(self, lexed: Lexed, offset: int) -> int | None:
        """The start of a call that only the name of its tool identifies."""
        names = "|".join(map(re.escape, self.names))
        mark = lexed.search(rf"{loose(self.open)}\s*{self.calls.named(names)}", offset)
        return mark.start() if mark else None

    def _opens(self, lexed: Lexed, offset: int) -> int | None:
        """The offset of an opening marker, if the marker counts.

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
        """Read the block that opens at `offset`: at least one call. The span of the last call includes the block's
        end."""
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
        """Read the calls of a block in this format."""
        opened = re.compile(_opening(self.open)).match(lexed.syntax, offset) if self.open else None
        begin = opened.end() if opened else offset
        attempts = self._in_a_row(lexed, begin, types, bool(opened))
        if not attempts:
            return [self._unread(lexed, offset, begin)]
        stop = self._stop(lexed, attempts[-1].stop, bool(opened))
        return [*attempts[:-1], replace(attempts[-1], stop=stop)]

    def _in_a_row(self, lexed: Lexed, offset: int, types: Types, opened: bool) -> list[Attempt]:
        """Yield the calls from `offset` on: at most one call outside of a block."""
        attempts = list[Attempt]()
        while len(attempts) < (CALLS_AT_MOST if opened else 1):
            start = self._next(lexed, offset, opened)
            if start is None:
                break
            attempts.append(self.calls.read(lexed, start, types))
            offset = attempts[-1].stop
        return attempts

    def _stop(self, lexed: Lexed, offset: int, opened: bool) -> int:
        """The end of the block whose last call ends at `offset`. Even a call outside of a block may be followed by the
        block's close."""
        if not opened and not self.close:
            return offset
        close = r"[\s;,]*" + _optional(self.close) if opened else r"\s*" + loose(self.close)
        closed = re.compile(close).match(lexed.syntax, offset)
        return closed.end() if closed else offset

    def _unread(self, lexed: Lexed, offset: int, begin: int) -> Attempt:
        """The Attempt for a block in which no call begins."""
        end = lexed.search(trigger(self.close), begin) if self.close else None
        stop = end.end() if end else len(lexed.text)
        raw = lexed.text[begin : end.start() if end else stop]
        return Attempt(offset, stop, raw, error="the call cannot be read")

    def _next(self, lexed: Lexed, offset: int, opened: bool) -> int | None:
        """The offset of the block's next call. Only whitespace and separators may come before the first call."""
        start = self.calls.find(lexed, offset)
        if start is None or (opened and lexed.syntax[offset:start].strip(" \t\r\n;,")):
            return None
        return start


def broken(lexed: Lexed, offset: int, begin: int, seen: int, error: str, markers: tuple[str, str]) -> Attempt:
    """A malformed Attempt that ends at its close (searched from `seen` on), else before the next call, else with the
    turn."""
    opening, close = markers
    closed = lexed.search(loose(close), seen) if close else None
    other = lexed.search(trigger(opening), seen) if opening else None
    if closed and not (other and other.start() < closed.start()):
        return Attempt(offset, closed.end(), lexed.text[begin : closed.start()], error=error)
    end = other.start() if other else len(lexed.text)
    return Attempt(offset, end, lexed.text[begin:end], error="the call is not closed" if close else error)


def types_of(tools: Sequence[ToolSpec]) -> Types:
    """Tool name -> JSON schema of the tool's arguments."""
    functions = [tool.get("function") or tool for tool in tools]
    by_name = {f["name"]: f.get("parameters") or {} for f in functions if "name" in f}
    return {name: Schema(parameters, parameters) for name, parameters in by_name.items()}


def stray_marks(block: Block | None, atoms: Mapping[int, str], others: Collection[str]) -> re.Pattern[str]:
    """A regular expression for marks of calls. A turn with such a mark, but without a readable call, is a malformed
    call and no answer.

    A mark that is a single token (see `Lexer.atoms`) counts anywhere, because no prose contains the token. A close in
    other tokens counts only at the end of the turn, after a line break or a bracket. Marks in `others` have other uses,
    and do not count.
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
    """The marker up to and including its first tag. Without a tag, the whole marker."""
    parts = pieces(marker)
    first = next((i for i, piece in enumerate(parts) if is_tag(piece)), len(parts) - 1)
    return "".join(parts[: first + 1])


def _opening(marker: str) -> str:
    rest = marker[len(head(marker)) :]
    return rf"\s*{trigger(marker)}\s*" + (_optional(rest) if has_tag(marker) else loose(rest))


def _optional(marker: str) -> str:
    """A regular expression for the marker's pieces in order, each of which may be missing."""
    return "".join(rf"(?:\s*{loose(piece)})?" for piece in pieces(marker) if not piece.isspace())
