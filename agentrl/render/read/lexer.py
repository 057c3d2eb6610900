"""Sampled tokens as text in which markers are recognized by their tokens, not by their letters."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from agentrl.render.template import Template

_PIECE = re.compile(r"<[^<>\s]*>|\[/?[A-Z_]+\]|\w+|\s+|.", re.DOTALL)
"""A pattern for a piece of a marker: a tag, a word, whitespace, or another single character."""

_compiled = lru_cache(maxsize=4096)(re.compile)
"""A `re.compile` with a larger cache, whose lookup takes a quarter of the time."""

BLANK = "\x00"

ID, NUMBER, NAME, TYPE = "\ue000", "\ue001", "\ue002", "\ue003"
"""Holes in a marker: characters that stand for a call's id, a number, a call's name, and the type of an argument."""
_HOLES = {ID: r"[\w.:-]+", NUMBER: r"\d+", NAME: r"[^\s<>(){}\x00]+", TYPE: r"\w*"}


@dataclass(slots=True)
class Lexed:
    """A turn in two texts of equal length: `text` is the full text, and parsers search in `syntax`.

    In `syntax`, a marker that the model wrote in ordinary tokens (a look-alike) is replaced by blanks.
    """

    text: str
    syntax: str
    scanned: int = 0
    """Number of characters that searches have read, a measure of the work of reading a turn."""
    _matches: dict[str, tuple[int, re.Match[str] | None]] = field(default_factory=dict)

    def search(self, pattern: str, offset: int) -> re.Match[str] | None:
        """The first match in `syntax` from `offset` on. No part of the text is searched twice for the same pattern."""
        since, match = self._matches.get(pattern, (len(self.syntax) + 1, None))
        if since <= offset and (match is None or match.start() >= offset):
            return match
        match = _compiled(pattern).search(self.syntax, offset)
        self.scanned += (match.end() if match else len(self.syntax)) - offset
        self._matches[pattern] = (offset, match)
        return match


class Lexer:
    """Converts a turn's tokens to a Lexed, and distinguishes markers from look-alikes in ordinary tokens.

    If a marker, or a part of a marker, is a single token of the vocabulary, only this token counts. All other parts of
    markers are recognized by their letters.
    """

    def __init__(self, template: Template, markers: Iterable[str]) -> None:
        self._template = template
        self._atoms: dict[int, str] = {}
        for marker in (part for whole in markers for part in literals(whole)):
            ids = template.encode(marker)
            for token in ids:
                if token in template.added_ids or (len(ids) == 1 and is_tag(marker)):
                    self._atoms[token] = template.decode([token])
        longest_first = sorted(self._atoms.values(), key=len, reverse=True)
        self._spelled = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    @property
    def atoms(self) -> Mapping[int, str]:
        """The texts of markers, or of parts of markers, that are single tokens."""
        return self._atoms

    def __call__(self, tokens: Sequence[int], lead: str = "") -> Lexed:
        """The tokens as a Lexed. `lead` is the beginning of the turn's syntax that the prompt already holds."""
        text, syntax, start = [lead], [lead], 0
        marks = self._atoms.keys() & set(tokens)
        ends = [index for index, token in enumerate(tokens) if token in marks] if marks else []
        for index in (*ends, len(tokens)):
            if start < index:
                plain = self._template.decode(tokens[start:index])
                text.append(plain)
                syntax.append(self._spelled.sub(lambda m: BLANK * len(m.group()), plain) if self._spelled else plain)
            if index < len(tokens):
                text.append(self._atoms[tokens[index]])
                syntax.append(self._atoms[tokens[index]])
            start = index + 1
        return Lexed("".join(text), "".join(syntax))


def pieces(text: str) -> list[str]:
    """The text cut into pieces: tags, words, whitespace, and other single characters."""
    return _PIECE.findall(text)


def literals(marker: str) -> list[str]:
    """The literal parts of a marker, between its holes."""
    return [part for part in re.split(f"[{ID}{NUMBER}{NAME}{TYPE}]", marker) if part]


@lru_cache(maxsize=4096)
def loose(marker: str, captured: str = "") -> str:
    """A regular expression for the marker with any or no whitespace between and around its pieces.

    The hole `captured` becomes a named group. The other holes match any text.
    """
    return r"\s*".join(_pattern(piece, captured) for piece in pieces(marker) if not piece.isspace())


@lru_cache(maxsize=4096)
def headed(marker: str) -> str:
    """A regular expression for the header of a message, which may name a type: `final <|constrain|>json<|message|>`."""
    parts = [piece for piece in pieces(marker) if not piece.isspace()]
    tags = [re.escape(piece) for piece in parts if is_tag(piece)]
    if len(tags) < 2 or not is_tag(parts[-1]) or is_tag(parts[-2]):
        return loose(marker)
    return rf"{loose(marker[: marker.rindex(parts[-1])])}{typed(tags)}\s*{tags[-1]}"


def typed(tags: Sequence[str]) -> str:
    """An optional type in a header: a word, or a word after a tag outside `tags`."""
    return rf"(?:(?:\s*(?!{'|'.join(tags)})<[^<>\s]+>\s*|\s+)[\w/.-]+)?"


def _pattern(piece: str, captured: str) -> str:
    parts = [_filling(char, captured) if char in _HOLES else re.escape(char) for char in piece]
    return "".join(parts)


def _filling(hole: str, captured: str) -> str:
    return f"(?P<{_GROUPS[hole]}>{_HOLES[hole]})" if hole == captured else _HOLES[hole]


_GROUPS = {ID: "id", TYPE: "type", NAME: "name", NUMBER: "number"}


def is_tag(piece: str) -> bool:
    """Whether the piece is a tag, which is unlikely in plain text: `<|call|>`, `</function>`, `[TOOL_CALLS]`."""
    return len(piece) > 2 and piece[0] in "<["


@lru_cache(maxsize=4096)
def has_tag(marker: str) -> bool:
    """Whether a piece of the marker is a tag."""
    return any(map(is_tag, pieces(marker)))


def is_distinct(marker: str) -> bool:
    """Whether the marker identifies a call anywhere in a turn: `functools[` does, `[` does not."""
    return has_tag(marker) or len("".join(literals(marker)).strip()) >= 3
