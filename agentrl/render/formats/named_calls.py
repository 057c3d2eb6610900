"""The formats in which a call's name precedes its arguments: `<function=` name `>` {...} `</function>`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentrl.render.formats import as_json, bare_keys, key_tags, kwargs, pairs, spelled
from agentrl.render.formats.arguments import Arguments, Learned
from agentrl.render.formats.spelled import Spelled
from agentrl.render.read.calls import Attempt, Block, Types, broken, trigger
from agentrl.render.read.json_value import ParseFailure
from agentrl.render.read.lexer import ID, NAME, NUMBER, Lexed, has_tag, is_distinct, is_tag, loose, pieces
from agentrl.render.read.schema import ANY, Schema

ARGUMENTS: tuple[Callable[[Spelled], Learned | None], ...] = (
    as_json.learn,
    key_tags.learn,
    pairs.learn,
    kwargs.learn,
    bare_keys.learn,
)
"""Functions that learn a format of arguments, the strictest format first."""

_LETTER = r"[^\s<>\[\](){}\"'`,;|=\x00]"
_TYPES = ("code", "text")
"""Words that models write for the type of a message in place of the template's word."""
_NAMESPACE = re.compile(r"(.*\W)(\w+\.)", re.DOTALL)
_TAG = r"(?:<[^<>\s]{0,40}>|\[/?[A-Z_]{1,40}\])"
_WINDOW = 80
"""Maximum number of characters between the start of a header and its recipient."""


@dataclass(frozen=True, slots=True)
class NamedCalls:
    """The format that writes a call as `open`, name, `between`, arguments, `close`. The markers have holes (see
    `lexer`) for the call's id, a number, or the name."""

    open: str
    between: str
    close: str
    arguments: Arguments
    name_in_id: bool = False
    """Whether the call's id, which contains the name, is written in place of the name: `functions.lookup:0`."""
    whole: bool = False
    """Whether the first tag of `open` also begins other parts of a turn, so that only the whole marker identifies a
    call."""

    @property
    def markers(self) -> tuple[str, ...]:
        """Markers that a Lexer must find for `read`."""
        return tuple(filter(None, (self.open, self.between, self.close, *self.arguments.markers)))

    def find(self, lexed: Lexed, offset: int) -> int | None:
        """The offset of the opening marker's first tag. For a marker without a tag: the offset of the whole header."""
        if has_tag(self.open):
            mark = lexed.search(loose(self.open) if self.whole else trigger(self.open), offset)
            return mark.start() if mark else None
        if is_distinct(self.open):
            mark = lexed.search(f"{self._header()}|{self._misnamed()}", offset)
            return self._framed(lexed, offset, mark.start()) if mark else None
        begins = re.compile(r"[\s;,]*(?P<call>" + self._header() + ")").match(lexed.syntax, offset)
        return begins.start("call") if begins else None

    def named(self, names: str) -> str:
        """See `Calls.named`: a pattern for the whole header with one of the names."""
        return rf"{loose(self.open)}\s*(?:{names})\s*{loose(self.between)}"

    def bind(self, names: Sequence[str]) -> NamedCalls:
        """Returns the format itself: its markers distinguish calls from text without the tools' names."""
        return self

    def _framed(self, lexed: Lexed, offset: int, start: int) -> int:
        """The start of a call, moved from the opening marker back to the first tag of the header:
        `<|channel|>commentary to=`."""
        tag = next(iter(self._tags), "")
        begin = max(offset, start - _WINDOW)
        frame = re.search(rf"{re.escape(tag)}\w*\s*\Z", lexed.syntax[begin:start]) if tag else None
        return begin + frame.start() if frame else start

    def read(self, lexed: Lexed, offset: int, types: Types) -> Attempt:
        """The call that opens at `offset`."""
        header = re.compile(self._framing() + self._header()).match(lexed.syntax, offset)
        if header is None:
            opening = re.compile(self._framing() + trigger(self.open)).match(lexed.syntax, offset)
            begin = opening.end() if opening else offset + 1
            return self._broken(lexed, offset, begin, begin, "the call's name cannot be read")
        name, call_id = header["name"], header.groupdict().get("id") or ""
        value, end = self._arguments(lexed, header.end(), types.get(name))
        if isinstance(value, ParseFailure):
            return self._broken(lexed, offset, header.start("name"), header.end(), value.reason, name)
        close = _or_without(self.close, "" if ID in self.open + self.between else ID)
        mark = re.compile(r"\s*" + close).match(lexed.syntax, end)
        if mark is None or self._goes_on(lexed, end):
            return self._broken(lexed, offset, header.start("name"), end, "text after the call's arguments", name)
        raw = lexed.text[header.start("name") : end]
        call_id = call_id or mark.groupdict().get("id") or ""
        if not isinstance(value, dict):
            return Attempt(
                offset, mark.end(), raw, name, id=call_id, error="the call's arguments must be a JSON object"
            )
        return Attempt(offset, mark.end(), raw, name, value, call_id)

    def _arguments(self, lexed: Lexed, offset: int, schema: Schema | None) -> tuple[Any, int]:
        value, end = self.arguments.read(lexed, offset, self.close, ANY if schema is None else schema)
        nothing = self._nothing(lexed, offset, schema) if isinstance(value, ParseFailure) else None
        return nothing or (value, end)

    def _goes_on(self, lexed: Lexed, offset: int) -> bool:
        """Whether a call without a close continues after the arguments, with further text in the message or with an
        object."""
        if self.close:
            return False
        more = rf"\s*(?!{_TAG})\S" if self._tags and not has_tag(self.open) else r"\s*\{"
        return re.compile(more).match(lexed.syntax, offset) is not None

    def _nothing(self, lexed: Lexed, offset: int, schema: Schema | None) -> tuple[dict[str, Any], int] | None:
        """Read missing arguments as empty, for a known tool without required arguments."""
        end = re.compile(r"\s*" + (loose(self.close) or r"\Z")).match(lexed.syntax, offset)
        return ({}, offset) if end is not None and schema is not None and not schema.requires else None

    def _broken(self, lexed: Lexed, offset: int, begin: int, seen: int, error: str, name: str = "") -> Attempt:
        attempt = broken(lexed, offset, begin, seen, error, (self.open, self.close))
        return replace(attempt, name=name)

    def _header(self) -> str:
        """A pattern for the text between name and arguments. A model may vary the text, except for the last tag."""
        between = _or_without(self.between, "" if ID in self.open else ID)
        tags = self._tags
        if tags and not {ID, NUMBER} & set(self.between):
            words = [re.escape(piece) for piece in pieces(self.between) if piece.isalnum()]
            words += [rf"{word}(?=\s*{re.escape(tags[-1])})" for word in _TYPES if words]
            varied = "|".join([rf"{_TAG}(?:\s?[\w/.-]+)?", *words])
            between = rf"(?:{between}|(?=[\s<\[])(?:\s{{0,8}}(?:{varied})){{0,8}}?\s{{0,8}}{re.escape(tags[-1])})"
        if isinstance(self.arguments, as_json.AsJson) and has_tag(self.open) and between:
            between = rf"(?:{between}|(?=\s*\{{))"  # a marker left out: [TOOL_CALLS]search{{...}}
        return rf"{self._opened()}\s*{self._name('?' if between else '')}\s*{between}"

    def _name(self, lazy: str) -> str:
        """A pattern for a name, or for an id that contains a name. If no marker follows, the name is as long as
        possible. Punctuation alone is no name."""
        letter = r"[\w.-]" if self.name_in_id else _LETTER
        name = rf"(?P<name>(?!/)(?={letter}{{0,127}}\w){letter}{{1,128}}{lazy})(?<!\.)"
        return rf"(?P<id>(?:[\w-]+\.)?{name}(?::\d+)?)" if self.name_in_id else name

    def _opened(self) -> str:
        """A pattern for the opening marker. A model may leave out a namespace (`functions.`). The namespace alone is no
        name."""
        to, namespace = self._spaced
        if not namespace:
            return _or_without(self.open, ID, begins=True)
        alone = rf"{re.escape(namespace[:-1])}(?![\w-])"
        return rf"{loose(to)}\s*(?:{loose(namespace)}(?!\s)|(?!{alone}))"

    def _misnamed(self) -> str:
        """A pattern for a header with several words as the name: `search web`."""
        if not self._tags:
            return r"(?!)"
        return rf"{loose(self._spaced[0])}[^\n{{}}\x00]{{0,128}}?{re.escape(self._tags[-1])}"

    def _framing(self) -> str:
        return "" if not self._tags or has_tag(self.open) else rf"(?:{re.escape(self._tags[0])}\w*)?\s*"

    @property
    def _tags(self) -> list[str]:
        """The tags between a name and its arguments."""
        return [piece for piece in pieces(self.between) if is_tag(piece)]

    @property
    def _spaced(self) -> tuple[str, str]:
        """A pattern for the opening marker and its namespace. The namespace is optional if other words identify the
        call."""
        match = None if has_tag(self.open) else _NAMESPACE.fullmatch(self.open)
        return (match[1], match[2]) if match is not None and is_distinct(match[1]) else (self.open, "")


def _or_without(marker: str, captured: str, begins: bool = False) -> str:
    """A regular expression for the marker, with or without its id or number and the piece before.

    The first piece of a marker that begins a call is required. If no piece follows the id, the id is required too:
    without the id, the call could not be recognized.
    """
    parts = [piece for piece in pieces(marker) if not piece.isspace()]
    index = next((i for i, piece in enumerate(parts) if piece in (ID, NUMBER)), None)
    if index is None or not parts[index + 1 :]:
        return loose(marker, captured)
    piece = loose(parts[index - 1]) if index else ""
    hole = rf"(?:{loose(parts[index], captured)})?"
    before, after = loose("".join(parts[: max(index - 1, 0)])), _or_without("".join(parts[index + 1 :]), "")
    led = rf"{piece}\s*{hole}" if begins and index <= 1 else rf"(?:{piece}\s*{hole})?"
    return r"\s*".join(filter(None, (before, led, after)))


def learn(probes: Spelled) -> Iterator[Block]:
    """Learn the format from calls in the template's text, by names before their arguments, and yield Blocks. Yields
    nothing for another format."""
    texts, name_in_id = list[str](), False
    for text in probes.texts:
        for i in range(2):
            named = spelled.id_with_name(i)
            name_in_id = name_in_id or named in text
            text = text.replace(named, spelled.name(i)).replace(spelled.call_id(i), ID)
        texts.append(text)
    probes = replace(probes, texts=tuple(texts))
    for learn_arguments in ARGUMENTS:
        learned = learn_arguments(probes)
        block = _around(probes.texts, *learned) if learned else None
        if block is not None and name_in_id and isinstance(block.calls, NamedCalls):
            block = replace(block, calls=replace(block.calls, name_in_id=True))
        if block is not None:
            yield block


def _around(texts: tuple[str, ...], arguments: Arguments, regions: list[list[tuple[int, int]]]) -> Block | None:
    """A Block with the texts around names and arguments as markers. None if any word with a bracket would then be a
    call."""
    befores, betweens = list[str](), list[str]()
    for text, row in zip(texts, regions, strict=True):
        offset = 0
        for i, (start, end) in enumerate(row):
            place = text.rfind(spelled.name(i), offset, start)
            if place < 0:
                return None
            before = text[offset:place].replace(spelled.name(i - 1), NAME)
            befores.append(before.replace(spelled.name(i), NAME))  # such as a recipient before the call itself
            betweens.append(text[place + len(spelled.name(i)) : start])
            offset = end
    after = texts[0][regions[0][0][1] :].replace(spelled.name(0), NAME)
    if len(set(betweens)) > 1:  # a number that counts the calls
        betweens = [re.sub(r"\d+", NUMBER, between) for between in betweens]
    if len(set(betweens)) > 1:
        return None
    opening, call_open, call_close, closing = spelled.wrap(befores[0], befores[2] if len(texts) > 1 else None, after)
    if not opening and not call_open:
        return None
    return Block(NamedCalls(call_open, betweens[0], call_close, arguments), opening, closing)
