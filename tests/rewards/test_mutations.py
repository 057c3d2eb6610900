"""Thousands of answers of which it is known by construction whether they are right, for our grader and slime's.

`mutations.py` makes them. slime's grader (SLIME_SRC) is asked the same, and its figures are printed beside ours.
"""

from __future__ import annotations

import asyncio
import importlib
from collections import Counter
from collections.abc import Callable

import pytest

from agentrl.rewards._maths import same
from tests.rewards.mutations import KINDS, Pair, pairs
from tests.rewards.others import importable, need, source


def wrongs(asked: list[Pair], is_paid: Callable[[str, str], bool]) -> tuple[list[Pair], list[Pair]]:
    """The wrong answers that are paid, and the right ones that are not."""
    graded = [(pair, is_paid(pair.answer, pair.label)) for pair in asked]
    return (
        [pair for pair, paid in graded if paid and not pair.right],
        [pair for pair, paid in graded if pair.right and not paid],
    )


def ours(answer: str, label: str) -> bool:
    return same(answer, [label])


@pytest.mark.parametrize("kind", KINDS)
def test_of_each_kind_a_few(kind):
    assert wrongs([pair for pair in pairs(2, seed=1) if pair.kind == kind], ours) == ([], [])


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_no_wrong_answer_of_thousands_is_paid(capsys):
    asked = list(pairs(40))
    paid, refused = wrongs(asked, ours)
    show(capsys, "ours", asked, paid, refused)
    assert sum(not pair.right for pair in asked) > 2000
    assert (paid, refused) == ([], [])


@pytest.mark.thorough
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("default")
async def test_the_same_answers_through_slimes_grader(capsys):
    need("pylatexenc", "slime")
    asked = list(pairs(8))
    with importable(source("SLIME_SRC", "slime")):
        theirs = importlib.import_module("slime.rollout.rm_hub.math_utils").grade_answer_verl
    paid, refused = await asyncio.to_thread(wrongs, asked, lambda answer, label: theirs(f"\\boxed{{{answer}}}", label))
    show(capsys, "slime", asked, paid, refused)
    our_paid, our_refused = wrongs(asked, ours)
    assert len(our_paid) < len(paid)
    assert len(our_refused) < len(refused)


def show(capsys, name: str, asked: list[Pair], paid: list[Pair], refused: list[Pair]) -> None:
    right = sum(pair.right for pair in asked)
    with capsys.disabled():
        print(f"\n{name}: {len(paid)} of {len(asked) - right} wrong answers are paid {dict(kinds(paid))}")
        print(f"{name}: {right - len(refused)} of {right} right answers are paid, not {dict(kinds(refused))}")


def kinds(asked: list[Pair]) -> Counter[str]:
    return Counter(pair.kind for pair in asked)
