"""Sampled tokens as text in which markers are known by their tokens, not by their spelling."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agentrl.render.template import Template

_PIECE = re.compile(r"<[^<>\s]*>|\[/?[A-Z_]+\]|\w+|\s+|.", re.DOTALL)
"""What a marker is made of: a tag, a word, whitespace, one other character."""

BLANK = "\x00"


@dataclass(frozen=True, slots=True)
class Lexed:
    """A turn twice, position for position: `text` as it reads, `syntax` as a parser may see it.

    In `syntax` the characters of a marker that was spelled out of ordinary tokens are blanks.
    """

    text: str
    syntax: str


class Lexer:
    """Tells markers from their look-alikes.

    Where (a part of) a marker is one token of the vocabulary, it counts only where that token was sampled. The rest of
    a marker, and a marker that the vocabulary lacks, is known by its spelling.
    """

    def __init__(self, template: Template, markers: Iterable[str]) -> None:
        self._template = template
        self._atoms: dict[int, str] = {}
        for marker in markers:
            ids = template.encode(marker)
            for token in ids:
                if token in template.added_ids or (len(ids) == 1 and is_tag(marker)):
                    self._atoms[token] = template.decode([token])
        longest_first = sorted(self._atoms.values(), key=len, reverse=True)
        self._spelled = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def __call__(self, tokens: Sequence[int]) -> Lexed:
        text, syntax, run = list[str](), list[str](), list[int]()
        for token in (*tokens, None):
            if token is not None and token not in self._atoms:
                run.append(token)
                continue
            if run:
                plain = self._template.decode(run)
                text.append(plain)
                syntax.append(self._spelled.sub(lambda m: BLANK * len(m.group()), plain) if self._spelled else plain)
                run.clear()
            if token is not None:
                text.append(self._atoms[token])
                syntax.append(self._atoms[token])
        return Lexed("".join(text), "".join(syntax))


def pieces(text: str) -> list[str]:
    """The text cut where a marker may begin or end."""
    return _PIECE.findall(text)


def loose(marker: str) -> str:
    """A regular expression for the marker with any whitespace, or none, between and around its pieces."""
    return r"\s*".join(re.escape(piece) for piece in pieces(marker) if not piece.isspace())


def is_tag(piece: str) -> bool:
    """Whether the piece can hardly stand in plain text: `<|call|>`, `</function>`, `[TOOL_CALLS]`."""
    return len(piece) > 2 and piece[0] in "<["
