"""Where an answer stands in what a model wrote, and which labels a task has."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.errors import ConfigError
from agentrl.types import JSON

LONGEST = 20_000
"""Characters. A longer answer is none: reading it would cost more than it can mean."""

_TAGS = "<answer>", "</answer>"
_BOX = re.compile(r"\\f?boxed(?=\s*\{|\s+\S)")


def tagged(text: str) -> str | None:
    """What the last finished <answer> holds. None if there is none.

    An <answer> that is opened again inside another one begins anew, as the model did.
    """
    opening, closing = _TAGS
    end = text.rfind(closing)
    start = text.rfind(opening, 0, end) if end >= 0 else -1
    if start < 0 or end - start > LONGEST:
        return None
    return text[start + len(opening) : end].strip()


def short_answer(text: str) -> str:
    """The last <answer>, or without tags the whole text; "" for one that is too long."""
    found = tagged(text)
    if found is None:
        found = "" if _TAGS[0] in text else text
    return found if len(found) <= LONGEST else ""


def boxed(text: str) -> str | None:
    r"""What the last \boxed{} or \fbox{} holds; of nested ones, the innermost. None if it never ends."""
    text = text[-LONGEST:]
    found = None
    for match in _BOX.finditer(text):
        found = match
    if found is None:
        return None
    start = text.find("{", found.end(), found.end() + 20)
    if text[found.end() : start].strip() or start < 0:
        return text[found.end() :].split(maxsplit=1)[0].strip("$.,") or None
    return _braced(text, start)


def _braced(text: str, start: int) -> str | None:
    """The text between the brace at `start` and its partner. Escaped braces count as text."""
    depth, position = 0, start
    while position < len(text):
        if text[position] == "\\":
            position += 2
            continue
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return text[start + 1 : position].strip()
        position += 1
    return None


def targets(label: JSON) -> list[str]:
    """The right answers: a text, a number, a list of them, or one of Search-R1's mappings. Raises ConfigError."""
    for key in ("reward_model", "ground_truth", "target"):
        if isinstance(label, Mapping) and key in label:
            label = label[key]
    found = list(label) if isinstance(label, Sequence) and not isinstance(label, str) else [label]
    if not all(isinstance(one, str | int | float) for one in found):
        raise ConfigError(f"the label {label!r:.100} is no right answer; write a text, a number or a list of them")
    return [text for one in found if (text := _plain(one).strip())]


def _plain(one: Any) -> str:
    return str(int(one)) if isinstance(one, float) and one.is_integer() else str(one)
