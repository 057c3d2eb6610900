"""Sampled tokens as text in which markers are recognized by their tokens, not by their spelling."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from agentrl.render.template import Template

_PIECE = re.compile(r"<[^<>\s]*>|\[/?[A-Z_]+\]|\w+|\s+|.", re.DOTALL)
"""The pieces of a marker: a tag, a word, whitespace, a single other character."""

_compiled = lru_cache(maxsize=4096)(re.compile)
"""As `re.compile`, but the lookup takes a quarter of the time."""

BLANK = "\x00"

ID, NUMBER, NAME, TYPE = "\ue000", "\ue001", "\ue002", "\ue003"
"""Holes in a marker: places for a call's id, a number, the call's name, the type of an argument."""
_HOLES = {ID: r"[\w.:-]+", NUMBER: r"\d+", NAME: r"[^\s<>(){}\x00]+", TYPE: r"\w*"}


@dataclass(slots=True)
class Lexed:
    """A turn twice, position for position: `text` is the full text, `syntax` is the part for parsers.

    In `syntax`, a marker spelled in ordinary tokens is replaced by blanks.
    """

    text: str
    syntax: str
    scanned: int = 0
    """Number of characters that searches have looked at: the work of reading a turn."""
    _matches: dict[str, tuple[int, re.Match[str] | None]] = field(default_factory=dict)

    def search(self, pattern: str, offset: int) -> re.Match[str] | None:
        """The first match in `syntax` from `offset` on. No part is searched twice."""
        since, match = self._matches.get(pattern, (len(self.syntax) + 1, None))
        if since <= offset and (match is None or match.start() >= offset):
            return match
        match = _compiled(pattern).search(self.syntax, offset)
        self.scanned += (match.end() if match else len(self.syntax)) - offset
        self._matches[pattern] = (offset, match)
        return match


class Lexer:
    """Distinguishes markers from look-alikes.

    If a marker, or a part of a marker, is a single token of the vocabulary, only the sampled token counts. The rest of
    a marker, and a marker outside the vocabulary, is recognized by its spelling.
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
        """Tokens of markers, or of parts of markers."""
        return self._atoms

    def __call__(self, tokens: Sequence[int], lead: str = "") -> Lexed:
        """`lead` is the part of the turn's own syntax that the prompt wrote before the turn."""
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
    """The text cut where a marker may begin or end."""
    return _PIECE.findall(text)


def literals(marker: str) -> list[str]:
    """The marker without its holes."""
    return [part for part in re.split(f"[{ID}{NUMBER}{NAME}{TYPE}]", marker) if part]


@lru_cache(maxsize=4096)
def loose(marker: str, captured: str = "") -> str:
    """A regular expression for the marker with any whitespace, or none, between and around the pieces.

    The hole `captured` is a group of this name. The other holes match any text.
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
    """Whether the piece is unlikely in plain text: `<|call|>`, `</function>`, `[TOOL_CALLS]`."""
    return len(piece) > 2 and piece[0] in "<["


@lru_cache(maxsize=4096)
def has_tag(marker: str) -> bool:
    """Whether a part of the marker is unlikely in plain text."""
    return any(map(is_tag, pieces(marker)))


def is_distinct(marker: str) -> bool:
    """Whether the marker identifies a call anywhere: `functools[` does, `[` does not."""
    return has_tag(marker) or len("".join(literals(marker)).strip()) >= 3
