"""Multiple choice: which letter a model chose."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agentrl.rewards.answers import boxed, short_answer, targets
from agentrl.rewards.grader import Grader
from agentrl.rewards.text import is_match, is_within, normalise
from agentrl.trajectory.model_output import ModelOutput
from agentrl.types import JSON

_LETTER = r"[\(\[\*\"'{$]*(?:\\text\{)?\(?\b([A-Za-z])\b(?!['’]\w)"
_STATED = re.compile(
    r"\b(?:answer|option|choice)\b(?:\s+(?:is|should\s+be|would\s+be|must\s+be))?(\s+not)?\s*[:=]?\s*"
    + _LETTER
    # "A is correct", and the capital letter alone: "a is correct" may be any sentence
    + r"|\b([A-Z])\b\)?\s+is\s+(not\s+|in)?(?:the\s+)?correct\b",
    re.IGNORECASE,
)
_ALONE = re.compile(r"(?<![\w'’])([A-Z])(?![\w'’])")


def letter(text: str, valid: Sequence[str]) -> str | None:
    """The letter that the text chooses: boxed, else stated last, else the last single capital letter."""
    box = boxed(text)
    if box and (found := _only(box)) in valid:
        return found
    stated = [found for match in _STATED.finditer(text) if (found := _stated(match)) in valid]
    if stated:
        return stated[-1]
    denied = {(match[2] or match[3]).upper() for match in _STATED.finditer(text) if match[1] or match[4]}
    return _alone(text, [one for one in valid if one not in denied])


def _alone(text: str, valid: Sequence[str]) -> str | None:
    """The last single capital letter that is not an English word."""
    alone = [found for found in _ALONE.findall(text) if found in valid]
    words = [one for one in alone if one not in "AI"]  # "A" and "I" are English words, too
    if alone and _only(text) == alone[0]:
        return str(alone[0])
    return str(words[-1]) if words else _bare_a(text, valid)


def _only(text: str) -> str:
    return re.sub(r"\\text|[^A-Za-z]", "", text).upper()


def _stated(match: re.Match[str]) -> str:
    """The letter of a statement, "" for one that denies it, or whose "a" is an article."""
    if match[1] or match[4]:
        return ""
    found = match[2] or match[3]
    follows = match.string[match.end() : match.end() + 2]
    article = found in "aAI" and bool(re.match(r"\s[A-Za-z]", follows)) and match[2] is not None
    return "" if article or (match[3] or "A").islower() else found.upper()


def _bare_a(text: str, valid: Sequence[str]) -> str | None:
    """Whether an "A" or "I" ends a line or a sentence, as an article or a pronoun does not."""
    found = [one for one in re.findall(r"(?<![\w'’])([AI])(?=[.)\]*]*\s*(?:$|\n))", text) if one in valid]
    return found[-1] if found else None


class Gpqa(Grader):
    """1 if the letter that the model chose last is right, else 0.

    The label is a letter, an index or the text of a choice. `metadata` may hold choices, valid_letters, correct_letter.
    """

    async def grade(self, written: ModelOutput) -> float:
        answer, metadata = short_answer(written.answer), written.metadata
        choices = _choices(metadata)
        valid = [
            str(one).upper() for one in metadata.get("valid_letters") or string.ascii_uppercase[: len(choices) or 10]
        ]
        right = _right_letter(written.label, metadata, choices, valid)
        found = letter(answer, valid)
        if found and right:
            return float(found == right)
        return float(_names_right(answer, _right_texts(written, choices, valid, right), choices))


def _choices(metadata: Mapping[str, JSON]) -> list[str]:
    given: Any = metadata.get("choices") or ()
    return [str(one) for one in (given.values() if isinstance(given, Mapping) else given)]


def _right_letter(label: JSON, metadata: Mapping[str, JSON], choices: list[str], valid: list[str]) -> str | None:
    given = metadata.get("correct_letter")
    if isinstance(given, str) and given.strip():
        return given.strip().upper()
    if isinstance(label, int | float):
        return valid[int(label)] if 0 <= label < len(valid) else None
    text = str(label or "").strip()
    if text.upper() in valid:
        return text.upper()
    return next((at for one, at in zip(choices, valid, strict=False) if is_match(one, [text])), None)


def _right_texts(written: ModelOutput, choices: list[str], valid: list[str], right: str | None) -> list[str]:
    found = [one for one, at in zip(choices, valid, strict=False) if at == right]
    found += [str(written.metadata[key]) for key in ("correct_answer", "answer_text") if written.metadata.get(key)]
    return found + [one for one in targets(written.label) if len(one) > 1] if written.label is not None else found


def _names_right(answer: str, rights: list[str], choices: Iterable[str]) -> bool:
    """Whether the answer names a right choice and no wrong one."""
    wrong = [one for one in choices if normalise(one) not in map(normalise, rights)]
    return is_within(answer, rights) and not is_within(answer, wrong)
