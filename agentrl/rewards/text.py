"""Short answers: exact match, containment and F1 over words."""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter

from agentrl.rewards.answers import LONGEST, short_answer, targets
from agentrl.rewards.grader import Grader
from agentrl.trajectory.model_output import ModelOutput

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_THOUSANDS = re.compile(r"(?<![\d.,])(\d{1,3})((?:,\d{3})+)(?![\d,])")
_NUMBER = re.compile(r"(?<![^\W\d_])(?<!\d)-(?=\d)|(?<=\d)[.,:/-](?=\d)|(?<![\w.])\.(?=\d)")
"""Marks that change the value of a number: a sign, and marks between digits or before the first one."""
_DASHES = str.maketrans(dict.fromkeys("‐‑‒–—−", "-"))
_KEPT = {"-": "\ue000", ".": "\ue001", ",": "\ue002", ":": "\ue003", "/": "\ue004"}
_BACK = str.maketrans({kept: mark for mark, kept in _KEPT.items()})
_ONE_WORD = ("yes", "no", "noanswer")


def normalise(text: str) -> str:
    """The text in lower case, without punctuation, articles and extra spaces, as SQuAD compares answers.

    Unlike in SQuAD, numbers keep their meaning: "1.5" is not "15", "-5" is not "5", "50%" is not "50". "1,234" becomes
    "1234". Decimal digits of any script become ASCII digits.
    """
    text = unicodedata.normalize("NFC", text[:LONGEST]).lower().translate(_DASHES)
    if not text.isascii():
        text = "".join(str(unicodedata.decimal(sign)) if sign.isdecimal() else sign for sign in text)
    text = _THOUSANDS.sub(lambda match: match[1] + match[2].replace(",", ""), text)
    text = _NUMBER.sub(lambda match: _KEPT[match[0]], text)
    text = re.sub(r"(?<=\d)\s*%", " percent", text)
    text = "".join(sign for sign in text if not _is_mark(sign)).translate(_BACK)
    return " ".join(_ARTICLES.sub(" ", text).split())


def _is_mark(sign: str) -> bool:
    return sign in string.punctuation or (sign > "\x7f" and unicodedata.category(sign).startswith("P"))


def is_match(answer: str, rights: list[str]) -> bool:
    """Whether the answer equals a right one. An answer of only punctuation equals no right answer."""
    given = normalise(answer)
    return bool(given) and any(given == normalise(right) for right in rights)


def is_within(text: str, rights: list[str]) -> bool:
    """Whether a right answer occurs in the text as whole words."""
    words = f" {normalise(text)} "
    return any(f" {wanted} " in words for right in rights if (wanted := normalise(right)))


def f1_of(answer: str, right: str) -> float:
    """The harmonic mean of precision and recall over words. "yes", "no", "noanswer" match only as the whole answer."""
    given, wanted = normalise(answer), normalise(right)
    if given != wanted and (given in _ONE_WORD or wanted in _ONE_WORD):
        return 0.0
    mine, theirs = given.split(), wanted.split()
    same = sum((Counter(mine) & Counter(theirs)).values())
    return 2 * same / (len(mine) + len(theirs)) if same else 0.0


class Em(Grader):
    """1 if the answer equals a right one, else 0."""

    async def grade(self, written: ModelOutput) -> float:
        return float(is_match(short_answer(written.answer), targets(written.label)))


class SubEm(Grader):
    """1 if a right answer occurs in the answer as whole words, else 0. It rewards long answers: prefer `em`."""

    async def grade(self, written: ModelOutput) -> float:
        return float(is_within(short_answer(written.answer), targets(written.label)))


class F1(Grader):
    """The best F1 over the right answers."""

    async def grade(self, written: ModelOutput) -> float:
        answer = short_answer(written.answer)
        return max((f1_of(answer, right) for right in targets(written.label)), default=0.0)
