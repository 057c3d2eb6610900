"""Short answers: equal texts match whatever they are, and marks that change a meaning count."""

from __future__ import annotations

import pytest

from agentrl import rewards
from agentrl.rewards.text import normalise
from agentrl.trajectory.model_output import ModelOutput

CLIPS = "He sold 24+48 = <<24+48=72>>72 clips.\n#### 72"

TEXTS = [
    # what a model wrote, the label; then the rewards of em, sub_em and f1, None where it does not matter
    *((text, "A", 1, 1, 1) for text in ("A", "A.", "(A)", " A\n", "<answer>A</answer>", "**A**")),
    *((text, "A", 0, 0, 0) for text in ("B", "An", "The", "", "!", "<think>A", "<answer></answer>", "A dog.", "A+")),
    ("a", "A", 1, None, 1),
    ("An", "An", 1, 1, 1),
    ("the", "The", 1, None, 1),
    ("the", "a", 0, 0, 0),
    ("The A", "A", 0, None, 0),
    ("The answer is A.", "A", 0, 1, 0),
    ("It is a dog, so B.", "A", 0, 0, 0),
    ("<answer>A</answer>", ["B", "A"], 1, 1, 1),
    ("The Who", "Who", 1, 1, 1),
    *((text, text, 1, 1, 1) for text in ("+", "?", "...", "%", "0", "C++", "C#", "O-", "Na+", "-1", "東京", "😀", "½")),
    *((text, label, 0, 0, 0) for text, label in (("-", "+"), ("...", "?"), ("??", "!!"), ("😀", "😢"))),
    *((text, label, 0, 0, 0) for text, label in (("C++", "C"), ("C", "C++"), ("C#", "C"), ("O+", "O-"), ("A+", "B+"))),
    *(
        (text, label, 0, 0, 0)
        for text, label in (("2+2", "22"), ("2^3", "23"), ("2*3", "23"), ("<5", "5"), ("5+", "5"))
    ),
    *((text, label, 0, 0, 0) for text, label in (("-0.5", "0.5"), ("00", 0), ("1", 0), ("x<5", "x>5"))),
    *((text, 0, 1, 1, 1) for text in ("0", "0.")),
    ("0", 0.0, 1, 1, 1),
    ("東京。", "東京", 1, 1, 1),
    ("São Paulo", "Sa\u0303o Paulo", 1, 1, 1),
    ("Par\u00adis\u200b", "Paris", 1, 1, 1),
    ("Paris\u00a0France", "Paris France", 1, 1, 1),
    ("naïve", "naive", 0, 0, 0),
    ("Yahoo", "Yahoo!", 1, 1, 1),
    ("72", CLIPS, 1, 1, 1),
    ("24", CLIPS, 0, 0, 0),
    ("1,450", "so\n#### 1,450\n", 1, 1, 1),
    ("Paris", "It is #### Paris", 1, 1, 1),
    ("#### is a heading", "#### is a heading", 1, 1, 1),
]


async def value(name, text, label):
    grade = await getattr(rewards, name).grade(ModelOutput.of_turns([text], label=label))
    return getattr(grade, "value", grade)


@pytest.mark.parametrize("row", TEXTS, ids=repr)
@pytest.mark.parametrize(("name", "column"), [("em", 2), ("sub_em", 3), ("f1", 4)])
async def test_short_answers(row, name, column):
    if row[column] is not None:
        assert await value(name, *row[:2]) == row[column]


@pytest.mark.parametrize("row", [row for row in TEXTS if "<" not in row[0]], ids=repr)
async def test_search_r1_compares_as_em_does(row):
    assert await value("search_r1", f"<think>b</think> <answer>{row[0]}</answer>", row[1]) == row[2]


@pytest.mark.parametrize("name", ["em", "sub_em", "f1"])
async def test_only_the_box_counts_with_slimes_prefix(name):
    assert await value(f"boxed_{name}", r"I say Lyon: \boxed{Paris}", "Paris") == 1
    assert await value(f"boxed_{name}", "Paris", "Paris") == 0


def test_other_marks_are_left_out_as_in_squad():
    assert normalise("The **U.S.** — Spider-Man's #1 (so-called) AT&T, a $5 book!") == (
        "us spidermans 1 socalled att 5 book"
    )
