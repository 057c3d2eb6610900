"""Thoughts in the text of another model's answer, if the server has not removed the thoughts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeAlias

Markers: TypeAlias = Sequence[tuple[str, str]]
"""How thoughts begin and end."""

NATIVE: Markers = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("◁think▷", "◁/think▷"),
    ("<seed:think>", "</seed:think>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<|channel|>analysis<|message|>", "<|channel|>final<|message|>"),
)
"""The markers of models."""
WRITTEN: Markers = (
    *NATIVE,
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
)
"""The markers of models, and the markers that models write on demand."""


def split_thoughts(text: str, markers: Markers = NATIVE) -> tuple[str, str]:
    """The thoughts in a text, and the rest of the text.

    A thought begins at the start of a line: anywhere else the mark is a word. A thought without an end takes the rest
    of the text. A text that ends a thought first began inside of the thought: the prompt had opened the thought.
    """
    thoughts = list[str]()
    for opening, closing in markers:
        begins = re.compile(rf"^[ \t]*{re.escape(opening)}", re.MULTILINE)
        first, end = begins.search(text), text.find(closing)
        if end >= 0 and (first is None or end < first.start()):
            thoughts.append(text[:end])
            text = text[end + len(closing) :]
        while first := begins.search(text):
            thought, _, rest = text[first.end() :].partition(closing)
            thoughts.append(thought)
            text = text[: first.start()] + rest
    return "\n".join(filter(None, (thought.strip() for thought in thoughts))), text.strip() if thoughts else text
