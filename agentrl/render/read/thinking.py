"""The markers around a model's thoughts."""

from __future__ import annotations

import re
from dataclasses import dataclass

from agentrl.render.read.lexer import is_tag, loose, pieces


@dataclass(frozen=True, slots=True)
class Thinking:
    """`open` thoughts `close`; the defaults are what most models use."""

    open: str = "<think>"
    close: str = "</think>"
    closing: str = "</think>\n\n"
    """What ends an open thought when the turn goes on, with its whitespace."""

    @classmethod
    def found(cls, before: str, prompt: str, after: str) -> Thinking:
        """From what a template writes before a thought (since the last message) and after it, and its prompt.

        A tag that only a turn with a thought has opens one. Where the prompt itself opens the thought, it is the
        prompt's last tag, or a phrase that history leaves out ("Here are my reasoning steps:").
        """
        parts = pieces(after)
        end = next((i for i, piece in enumerate(parts) if is_tag(piece)), len(parts) - 1)
        close = parts[end] if parts and is_tag(parts[end]) else after.strip()
        space = parts[end + 1] if end + 1 < len(parts) and parts[end + 1].isspace() else ""
        closing = "".join(parts[: end + 1]) + space
        common = shared(before, prompt)
        added, dropped = before[len(common) :], prompt[len(common) :].strip()
        if any(map(is_tag, pieces(added))):
            return cls(added.strip(), close, closing)
        if dropped and close not in dropped:
            return cls(dropped, close, closing)
        opening = pieces(before)
        start = max((i for i, piece in enumerate(opening) if is_tag(piece)), default=len(opening))
        return cls("".join(opening[start:]).strip(), close, closing) if start < len(opening) else cls()

    def left_open(self, text: str, thinking: bool = False) -> bool:
        """Whether a reader of the text, who may begin within a thought, ends within one."""
        opened, ended = _last(self.open, text), _last(self.close, text)
        return opened > ended if opened != ended else thinking

    def ends_in(self, text: str) -> bool:
        """Whether a thought ends somewhere in the text."""
        return _last(self.close, text) >= 0

    def behind(self, text: str) -> str:
        """The text behind its last thought."""
        ends = [m.end() for m in re.finditer(loose(self.close), text)]
        return text[ends[-1] :] if ends else text


def shared(left: str, right: str) -> str:
    """What both texts begin with, up to where a marker ends."""
    at = 0
    for ours, theirs in zip(pieces(left), pieces(right), strict=False):
        if ours != theirs:
            break
        at += len(ours)
    return left[:at]


def _last(marker: str, text: str) -> int:
    return max((m.start() for m in re.finditer(loose(marker), text)), default=-1)
