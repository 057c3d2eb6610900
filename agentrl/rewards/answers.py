"""Finds the answer in a model's text, and the right answers in the label of a task."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.errors import ConfigError
from agentrl.types import JSON

LONGEST = 20_000
"""The most characters of an answer. A longer answer counts as no answer, because parsing would cost too much."""

_TAGS = "<answer>", "</answer>"
_BOX = re.compile(r"\\f?box(?:ed)?(?=\s*\{|\s+\S)")
_FINAL = re.compile(r"(?:^|\s)####\s*(\S.*?)\s*\Z")
"""The end of a solution in GSM8K's form: "####" and the answer."""
_SPACE = re.compile(r"\s*")
_WORD = re.compile(r"[^\s$.,{}]+")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_JOINED = re.compile(r"(?:[\s,;$&{}]|\\[()\[\],;!\s]|\\q?quad\b|\\(?:text|mbox|mathrm)\b|\b(?:and|or)\b)*")
"""The text between two boxes that belong to a single answer. No two alternatives begin with the same character, so that
a long text costs no time."""


def tagged(text: str) -> str | None:
    """The content of the last <answer> that is closed. None without a closed <answer>.

    A second <answer> inside an open <answer> restarts the answer.
    """
    opening, closing = _TAGS
    end = text.rfind(closing)
    start = text.rfind(opening, 0, end) if end >= 0 else -1
    if start < 0 or end - start > LONGEST:
        return None
    return text[start + len(opening) : end].strip()


def short_answer(text: str) -> str:
    """The content of the last <answer>, or the whole text if it has no <answer>. "" for an answer of more than
    `LONGEST` characters."""
    answer = tagged(text)
    if answer is None:
        answer = "" if _TAGS[0] in text else text
    return answer if len(answer) <= LONGEST else ""


def boxed(text: str) -> str | None:
    r"""The content of the last \boxed{} or \fbox{}, and of nested boxes the innermost. None if the box never ends.

    Boxes with only "and" or a comma in between are a single answer: "\boxed{1} and \boxed{2}" is "1, 2".
    """
    text = text[-LONGEST:]
    *earlier, last = [match.span() for match in _BOX.finditer(text)] or [(0, 0)]
    box = _box(text, last[1]) if last[1] else None
    if box is None:
        return None
    answers, start = [box[0]], last[0]
    for opening, position in reversed(earlier):
        before = _box(text, position)
        if before is None or before[1] > start or not _JOINED.fullmatch(text, before[1], start):
            break
        answers, start = [before[0], *answers], opening
    return ", ".join(dict.fromkeys(answers))


def _box(text: str, position: int) -> tuple[str, int] | None:
    r"""(content, end) of a box. `position` is the end of the command \boxed. None if the box is never closed."""
    following = text[position : position + 1]
    start = position if following == "{" else position + len(_SPACE.match(text, position)[0])  # type: ignore[index]
    if text[start : start + 1] == "{":
        end = _partner(text, start)
        return None if end is None else (text[start + 1 : end].strip(), end + 1)
    word = _WORD.match(text, start)
    return (word[0], word.end()) if word else None


def _partner(text: str, start: int) -> int | None:
    """The index of the brace that closes the brace at `start`. None if it is never closed. Escaped braces count as
    text."""
    depth = 0
    for match in _BRACE.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if depth == 0:
            return match.start()
    return None


def targets(label: JSON) -> list[str]:
    """The right answers of a label. The label is a text, a number, a list of texts and numbers, or a mapping as in
    Search-R1. Raises ConfigError.

    In a solution in GSM8K's form, only the text after "####" is the answer.
    """
    for key in ("reward_model", "ground_truth", "target"):
        if isinstance(label, Mapping) and key in label:
            label = label[key]
    rights = list(label) if isinstance(label, Sequence) and not isinstance(label, str) else [label]
    if not all(isinstance(right, str | int | float) for right in rights):
        raise ConfigError(f"the label {label!r:.100} is not a right answer; write a text, a number or a list of them")
    return [text for right in rights if (text := _plain(right).strip())]


def _plain(right: Any) -> str:
    text = str(int(right)) if isinstance(right, float) and right.is_integer() else str(right)
    final = _FINAL.search(text)
    return final[1] if final else text
