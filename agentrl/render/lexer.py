"""Sampled tokens as text in which markers are known by their tokens, not by their spelling."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from agentrl.render.template import Template


@dataclass(frozen=True, slots=True)
class Mark:
    """A marker at `text[start:stop]`."""

    start: int
    stop: int
    text: str


@dataclass(frozen=True, slots=True)
class Lexed:
    """A turn's text and its markers, in order and without overlap."""

    text: str
    marks: tuple[Mark, ...]

    def next(self, at: int, *kinds: str) -> Mark | None:
        """The first marker of these kinds that starts at or after `at`."""
        return next((mark for mark in self.marks if mark.start >= at and mark.text in kinds), None)


class Lexer:
    """Finds a fixed set of markers.

    A marker that is one token of the vocabulary counts only where that token was sampled: the same characters spelled
    out of other tokens are text. A marker that the vocabulary lacks is found by its spelling.
    """

    def __init__(self, template: Template, markers: Iterable[str]) -> None:
        self._template = template
        atomic: dict[int, str] = {}
        spelled: list[str] = []
        for marker in markers:
            ids = template.encode(marker)
            if len(ids) == 1:
                atomic[ids[0]] = marker
            else:
                spelled.append(marker)
        self._atomic: Mapping[int, str] = atomic
        longest_first = sorted(spelled, key=len, reverse=True)
        self._spelled = re.compile("|".join(map(re.escape, longest_first))) if spelled else None

    def __call__(self, tokens: Sequence[int]) -> Lexed:
        text, marks, run = "", [], list[int]()
        for token in tokens:
            marker = self._atomic.get(token)
            if marker is None:
                run.append(token)
                continue
            text += self._template.decode(run) if run else ""
            marks.append(Mark(len(text), len(text) + len(marker), marker))
            text += marker
            run.clear()
        text += self._template.decode(run) if run else ""
        if self._spelled is not None:
            taken = {mark.start for mark in marks}
            found = (Mark(m.start(), m.end(), m.group()) for m in self._spelled.finditer(text))
            marks = sorted([*marks, *(mark for mark in found if mark.start not in taken)], key=lambda mark: mark.start)
        return Lexed(text, tuple(marks))
