"""Calls whose name stands before their arguments."""

from __future__ import annotations

import re
from dataclasses import dataclass

from agentrl.render.formats.arguments import Arguments
from agentrl.render.read.calls import Attempt, Types, broken, trigger
from agentrl.render.read.json_value import Unread
from agentrl.render.read.lexer import Lexed, is_tag, loose, pieces

_NAME = r"(?P<name>[^\s<>\[\](){{}}\"',;|=\x00]+{})"
"""Greedy where nothing else ends the name."""


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
