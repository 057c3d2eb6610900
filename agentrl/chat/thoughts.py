"""Find a model's thoughts in the text of its reply, for servers that do not separate the thoughts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeAlias

Markers: TypeAlias = Sequence[tuple[str, str]]
"""Pairs of the texts that begin and end a thought."""

NATIVE: Markers = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("◁think▷", "◁/think▷"),
    ("<seed:think>", "</seed:think>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<|channel|>analysis<|message|>", "<|channel|>final<|message|>"),
)
"""The markers that are built into models."""
WRITTEN: Markers = (
    *NATIVE,
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
)
"""`NATIVE`, and the markers that models write if a prompt asks for thoughts."""


def split_thoughts(text: str, markers: Markers = NATIVE) -> tuple[str, str]:
    """The thoughts in a text, and the rest of the text.

    Only a marker at the start of a line begins a thought; elsewhere the marker is a word. A thought without an end
    takes the rest of the text. If an end comes before any beginning, the text begins inside a thought, which the prompt
    opened.
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
