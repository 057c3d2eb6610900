"""Rewards for short answers: exact match, containment and F1 over words."""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter

from agentrl.rewards.answers import LONGEST, boxed, short_answer, targets
from agentrl.rewards.grader import Grader
from agentrl.rewards.labels import check_label
from agentrl.trajectory.model_output import ModelOutput
from agentrl.types import Task

_ARTICLES = re.compile(r"(?<!\S)(?:a|an|the)(?!\S)")
_THOUSANDS = re.compile(r"(?<![\d.,])(\d{1,3})((?:,\d{3})+)(?![\d,])")
_MEANT = re.compile(
    r"(?<![^\W\d_])(?<!\d)-(?=\d)|(?<=\d)[.,:/+*^=-](?=\d)|(?<=\w)[<>](?=\w)|(?<![\w.])\.(?=\d)|(?<![\w\"'/])[<>](?=\s?\d)"
    r"|(?<=\w)(?:\+\+?|\#)(?!\w)|(?:(?<=\b[a-z])|(?<=\b[a-z]{2}))-(?!\S)"
)
"""Marks that change a meaning: a minus sign, marks between digits, before the first digit or after a word (C++, C#,
O-)."""
_DASHES = str.maketrans(dict.fromkeys("‐‑‒–—−", "-"))
_HIDDEN = {mark: chr(0xE000 + i) for i, mark in enumerate("-.,:/+*^=<>#")}
_BACK = str.maketrans({hidden: mark for mark, hidden in _HIDDEN.items()})
_ONE_WORD = ("yes", "no", "noanswer", "")
_MARKS = ("Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Cf")
"""Unicode's categories of punctuation, and of invisible characters such as a zero-width space."""


def normalise(text: str) -> str:
    """The text in lower case, without punctuation, articles and extra spaces, as SQuAD compares answers.

    Unlike in SQuAD, marks keep their meaning: "1.5" differs from "15", "-5" from "5", "50%" from "50", "C++" from "C".
    "1,234" becomes "1234". Decimal digits of any script become ASCII digits.
    """
    return " ".join(_ARTICLES.sub(" ", _unmarked(text)).split())


def _unmarked(text: str) -> str:
    """The text as by `normalise`, but with articles."""
    text = unicodedata.normalize("NFC", text[:LONGEST]).lower().translate(_DASHES)
    if not text.isascii():
        text = "".join(str(unicodedata.decimal(sign)) if sign.isdecimal() else sign for sign in text)
    text = _THOUSANDS.sub(lambda match: match[1] + match[2].replace(",", ""), text)
    text = _MEANT.sub(lambda match: "".join(_HIDDEN[mark] for mark in match[0]), text)
    text = re.sub(r"(?<=\d)\s*%", " percent", text)
    return " ".join("".join(sign for sign in text if not _is_mark(sign)).translate(_BACK).split())


def _is_mark(sign: str) -> bool:
    return sign in string.punctuation or (sign > "\x7f" and unicodedata.category(sign) in _MARKS)


def is_match(answer: str, rights: list[str]) -> bool:
    """Whether the answer equals a right answer. Texts of punctuation alone match, too, if they are equal."""
    return any(_is_same(answer, right) for right in rights)


def _is_same(answer: str, right: str) -> bool:
    """Whether two texts are equal. Articles count only if the right text has nothing but articles."""
    if answer.strip() == right.strip():
        return bool(right.strip())
    if target := normalise(right):
        return normalise(answer) == target
    return bool(target := _unmarked(right)) and _unmarked(answer) == target


def is_within(text: str, rights: list[str]) -> bool:
    """Whether a right answer occurs in the text as whole words."""
    words = f" {normalise(text)} "
    return any(f" {target} " in words if (target := normalise(right)) else _is_named(text, right) for right in rights)


def _is_named(text: str, right: str) -> bool:
    """Whether a right answer that is an article or punctuation occurs as an answer: the A of "it is A", but not the "a"
    of "it is a dog"."""
    if not (right := right.strip()):
        return False
    for match in re.finditer(rf"(?<![\w'’-]){re.escape(right)}(?![\w'’+#-])", text, re.IGNORECASE):
        begins = not text[: match.start()].rstrip() or text[: match.start()].rstrip()[-1] in ".!?:"
        if not re.match(r"\s+\w", text[match.end() :]) or (match[0][0].isupper() and not begins):
            return True
    return False


def f1_of(answer: str, right: str) -> float:
    """The harmonic mean of precision and recall over words. "yes", "no", "noanswer", and texts that are only articles
    or punctuation, match only as the whole answer."""
    if _is_same(answer, right):
        return 1.0
    words, target = normalise(answer), normalise(right)
    if words in _ONE_WORD or target in _ONE_WORD:
        return 0.0
    mine, theirs = words.split(), target.split()
    same = sum((Counter(mine) & Counter(theirs)).values())
    return 2 * same / (len(mine) + len(theirs)) if same else 0.0


class _TextGrader(Grader):
    def __init__(self, *, box: bool = False) -> None:
        self.box = box

    def check_task(self, task: Task) -> None:
        check_label(task.label)

    def answer(self, output: ModelOutput) -> str:
        return (boxed(output.answer) or "") if self.box else short_answer(output.answer)


class Em(_TextGrader):
    r"""The reward is 1 if the answer equals a right answer, else 0. `box`: the content of the last \boxed{} is the
    answer."""

    async def grade(self, output: ModelOutput) -> float:
        return float(is_match(self.answer(output), targets(output.label)))


class SubEm(_TextGrader):
    """The reward is 1 if a right answer occurs in the answer as whole words, else 0. Long answers profit: prefer
    `em`."""

    async def grade(self, output: ModelOutput) -> float:
        return float(is_within(self.answer(output), targets(output.label)))


class F1(_TextGrader):
    """The reward is the best F1 over the right answers."""

    async def grade(self, output: ModelOutput) -> float:
        answer = self.answer(output)
        return max((f1_of(answer, right) for right in targets(output.label)), default=0.0)
