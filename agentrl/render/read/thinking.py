"""The markers around a model's thoughts."""

from __future__ import annotations

import re
from dataclasses import dataclass

from agentrl.render.read.lexer import headed, loose, pieces


@dataclass(frozen=True, slots=True)
class Thinking:
    """The markers `open` and `close` around thoughts. The defaults are the markers of most models."""

    open: str = "<think>"
    close: str = "</think>"
    closing: str = "</think>\n\n"
    """The text that ends a thought before the turn continues: `close` with whitespace."""
    ends_more: bool = False
    """Whether `close` also ends other parts of a turn, so that it ends a thought only after `open`."""

    @property
    def opening(self) -> str:
        """A regular expression for `open`."""
        return headed(self.open)

    def left_open(self, text: str, thinking: bool = False) -> bool:
        """Whether the text ends within a thought. `thinking`: the text begins within a thought."""
        opened, ended = _last(self.opening, text), _last(loose(self.close), text)
        return opened > ended if opened != ended else thinking

    def ends_in(self, text: str) -> bool:
        """Whether a thought ends somewhere in the text."""
        return _last(loose(self.close), text) >= 0

    def behind(self, text: str) -> str:
        """The text after the last thought."""
        if self.ends_more:
            _, opened, rest = text.rpartition(self.open)
            return rest.partition(self.close)[2] if opened else text
        ends = [m.end() for m in re.finditer(loose(self.close), text)]
        return text[ends[-1] :] if ends else text


def shared(first: str, second: str) -> str:
    """The text with which both texts begin, cut to whole pieces (see `lexer.pieces`)."""
    length = 0
    for ours, theirs in zip(pieces(first), pieces(second), strict=False):
        if ours != theirs:
            break
        length += len(ours)
    return first[:length]


def _last(pattern: str, text: str) -> int:
    start = -1
    for match in re.finditer(pattern, text):
        start = match.start()
    return start
