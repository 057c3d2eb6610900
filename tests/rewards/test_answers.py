r"""One table: what naive graders get wrong. Each row is what a model wrote, the label, and the right grade.

The columns beside it, where slime's source is present, are in `test_beside_slime.py`.
"""

from __future__ import annotations

import pytest

from agentrl import rewards
from agentrl.rewards.answers import LONGEST, boxed
from agentrl.trajectory.model_output import ModelOutput

LONG = 10 * 2**20
FOUND = "\n\n<information>Doc 1(Title: France) The capital is Paris.</information>\n\n"

CASES = {
    # math
    "a point is not nothing": ("math", r"\boxed{15}", "1.5", 0),
    "nor the other way round": ("math", r"\boxed{1.5}", "15", 0),
    "equal numbers": ("math", r"\boxed{1.50}", "1.5", 1),
    "a fraction": ("math", r"\boxed{\frac{1}{2}}", "0.5", 1),
    "a fraction not reduced": ("math", r"\boxed{\frac{2}{4}}", r"\frac{1}{2}", 1),
    "a short fraction": ("math", r"\boxed{\frac12}", "1/2", 1),
    "thousands": ("math", r"\boxed{1,234}", "1234", 1),
    "thousands in LaTeX": ("math", r"\boxed{12{,}345}", "12345", 1),
    "thousands with a thin space": ("math", r"\boxed{1\,000}", "1000", 1),
    "two numbers are not one": ("math", r"\boxed{2,3}", "23", 0),
    "percent": ("math", r"\boxed{50\%}", r"50\%", 1),
    "percent as a number": ("math", r"\boxed{0.5}", r"50\%", 1),
    "a number for percent": ("math", r"\boxed{50}", "0.5", 0),
    "a unit": ("math", r"\boxed{5\text{ cm}}", "5", 1),
    "another unit": ("math", r"\boxed{5\text{ m}}", r"5\text{ cm}", 0),
    "the unit in full": ("math", r"\boxed{5\text{ centimeters}}", r"5\text{ cm}", 1),
    "a square unit": ("math", r"\boxed{5\text{ cm}^2}", r"5\text{ cm}", 0),
    "degrees": ("math", r"\boxed{90^\circ}", "90", 1),
    "dollars": ("math", r"\boxed{\$5}", "5", 1),
    "a closed interval": ("math", r"\boxed{[1,2]}", "(1,2)", 0),
    "an interval": ("math", r"\boxed{(-\infty,2]}", r"(-\infty, 2]", 1),
    "an interval as an inequality": ("math", r"\boxed{(-\infty, 2]}", r"x \le 2", 1),
    "a set in another order": ("math", r"\boxed{\{2,1\}}", r"\{1,2\}", 1),
    "a set is no pair": ("math", r"\boxed{\{1,2\}}", "(1,2)", 0),
    "a pair in another order": ("math", r"\boxed{(2,1)}", "(1,2)", 0),
    "a set that is smaller": ("math", r"\boxed{\{1\}}", r"\{1,2\}", 0),
    "matrices": (
        "math",
        r"\boxed{\begin{bmatrix}1&2\\3&4\end{bmatrix}}",
        r"\begin{pmatrix}1&2\\3&4\end{pmatrix}",
        1,
    ),
    "a matrix transposed": (
        "math",
        r"\boxed{\begin{pmatrix}1&3\\2&4\end{pmatrix}}",
        r"\begin{pmatrix}1&2\\3&4\end{pmatrix}",
        0,
    ),
    "a mixed number": ("math", r"\boxed{3 1/2}", "3.5", 1),
    "scientific": ("math", r"\boxed{1e3}", "1000", 1),
    "both roots": ("math", r"\boxed{2}", r"\pm 2", 0),
    "an equation": ("math", r"\boxed{x=5}", "5", 1),
    "a sum in another order": ("math", r"\boxed{x+1}", "1+x", 1),
    "a sign": ("math", r"\boxed{-5}", "5", 0),
    "tiny numbers": ("math", r"\boxed{\frac{1}{2004!}}", r"\frac{1}{2006!}", 0),
    "tiny decimals": ("math", r"\boxed{0.0000001}", "0.0000002", 0),
    "a tiny number": ("math", r"\boxed{10^{-7}}", "0.0000001", 1),
    "Arabic digits": ("math", r"\boxed{٣}", "3", 1),
    "wide digits": ("math", r"\boxed{１５}", "15", 1),
    "a superscript is no digit": ("math", r"\boxed{5²}", "52", 0),
    "words": ("math", r"\boxed{\text{Paris}}", "Paris", 1),
    "no box": ("math", "The answer is 5.", "5", 0),
    "an empty box": ("math", r"\boxed{}", "5", 0),
    "an empty label": ("math", r"\boxed{}", "", 0),
    "empty": ("math", "", "5", 0),
    "nested boxes": ("math", r"\boxed{\boxed{5}}", "5", 1),
    "a box in a fraction": ("math", r"\boxed{\frac{1}{\sqrt{2}}}", r"\frac{\sqrt{2}}{2}", 1),
    "two boxes, the last is right": ("math", r"\boxed{4}, no: \boxed{5}", "5", 1),
    "two boxes, the last is wrong": ("math", r"\boxed{5}, no: \boxed{4}", "5", 0),
    "two boxes, one answer": ("math", r"\boxed{1} \text{ and } \boxed{-2}", r"\{-2, 1\}", 1),
    "two boxes to choose from": ("math", r"\boxed{4}, \boxed{5}", "5", 0),
    "the same box twice": ("math", r"$\boxed{5}$ $\boxed{5}$", "5", 1),
    "an fbox": ("math", r"\fbox{5}", "5", 1),
    "a box without braces": ("math", r"$\boxed 5$", "5", 1),
    "a brace in a box": ("math", r"\boxed{\left\{1,2\right\}}", r"\{1,2\}", 1),
    "a box that never ends": ("math", r"so \boxed{5", "5", 0),
    "a box in an unfinished thought": ("math", r"<think>perhaps \boxed{5}", "5", 0),
    "a box in a thought, another behind": ("math", r"<think>\boxed{5}</think>\boxed{4}", "5", 0),
    "a box before an unfinished thought": ("math", r"\boxed{5}<think>or \boxed{4}", "5", 1),
    "ten megabytes, then the box": ("math", "x " * (LONG // 2) + r"\boxed{5}", "5", 1),
    "ten megabytes in the box": ("math", r"\boxed{" + "1" * LONG + "}", "5", 0),
    "ten megabytes of boxes": ("math", r"\boxed{" * (LONG // 7), "5", 0),
    "the label is boxed": ("math", r"\boxed{5}", r"\boxed{5}", 1),
    "the label is a number": ("math", r"\boxed{5}", 5, 1),
    "much between two boxes": ("math", r"\boxed{4}" + " and" * 4000 + " x" + r"\boxed{5}", "5", 1),
    # dapo and deepscaler
    "dapo": ("dapo", "So:\nAnswer: 42", "42", 1),
    "dapo in a box": ("dapo", r"Answer: $\boxed{42}$", "42", 1),
    "dapo, thousands": ("dapo", "Answer: 1,234", "1234", 1),
    "dapo, the last line": ("dapo", "Answer: 41\nAnswer: 42", "42", 1),
    "dapo, a point": ("dapo", "Answer: 4.2", "42", -1),
    "dapo, no line": ("dapo", "42", "42", -1),
    "dapo, far from the end": ("dapo", "Answer: 42\n" + "I am sure. " * 60, "42", 1),
    "dapo, unfinished thought": ("dapo", "<think>Answer: 42", "42", -1),
    "deepscaler": ("deepscaler", r"<think>a</think>\boxed{42}", "42", 1),
    "deepscaler without a thought": ("deepscaler", r"\boxed{42}", "42", 0),
    # em
    "em": ("em", "<answer> The Beatles. </answer>", "Beatles", 1),
    "em: a point": ("em", "<answer>1.5</answer>", "15", 0),
    "em: a sign": ("em", "<answer>-5</answer>", "5", 0),
    "em: a ratio": ("em", "<answer>3/4</answer>", "34", 0),
    "em: a time": ("em", "<answer>12:30</answer>", "1230", 0),
    "em: thousands": ("em", "<answer>1,234,567</answer>", "1234567", 1),
    "em: a score with another dash": ("em", "<answer>3–2</answer>", "3-2", 1),
    "em: percent": ("em", "<answer>50%</answer>", "50", 0),
    "em: percent in words": ("em", "<answer>50 %</answer>", "50 percent", 1),
    "em: Arabic digits": ("em", "<answer>١٥</answer>", "15", 1),
    "em: a curly apostrophe": ("em", "<answer>Don’t Stop</answer>", "Don't Stop", 1),
    "em: composed accents": ("em", "<answer>Beyonce\u0301</answer>", "Beyoncé", 1),
    "em: a full stop at the end of a number": ("em", "<answer>1985.</answer>", "1985", 1),
    "em: initials": ("em", "<answer>J.K. Rowling</answer>", "JK Rowling", 1),
    "em: a hyphen in a word": ("em", "<answer>Spider-Man</answer>", "Spiderman", 1),
    "em: two answers, the last is right": ("em", "<answer>Lyon</answer> or <answer>Paris</answer>", "Paris", 1),
    "em: two answers, the last is wrong": ("em", "<answer>Paris</answer> or <answer>Lyon</answer>", "Paris", 0),
    "em: both in one": ("em", "<answer>Paris or Lyon</answer>", "Paris", 0),
    "em: never ends": ("em", "<answer>Paris", "Paris", 0),
    "em: in an unfinished thought": ("em", "<think>I say <answer>Paris</answer>", "Paris", 0),
    "em: no tags": ("em", "Paris", "Paris", 1),
    "em: no tags, a sentence": ("em", "It is Paris", "Paris", 0),
    "em: one of several labels": ("em", "<answer>NYC</answer>", ["New York", "NYC"], 1),
    "em: Search-R1's label": ("em", "<answer>NYC</answer>", {"ground_truth": {"target": ["NYC"]}}, 1),
    "em: empty": ("em", "<answer></answer>", "Paris", 0),
    "em: only an article": ("em", "<answer>the</answer>", "a", 0),
    "em: ten megabytes": ("em", "Paris " * (LONG // 6), "Paris", 0),
    "em: ten megabytes of tags": ("em", "<answer>" * (LONG // 8), "Paris", 0),
    "em: ten megabytes before": ("em", "x" * LONG + "<answer>Paris</answer>", "Paris", 1),
    "sub_em": ("sub_em", "It is Paris, of course.", "Paris", 1),
    "sub_em: whole words": ("sub_em", "It was 1985.", "198", 0),
    "sub_em: a point": ("sub_em", "It is 1.5 m.", "15", 0),
    "sub_em: an empty label": ("sub_em", "It is Paris.", "", 0),
    "f1": ("f1", "the brown fox", "a quick brown fox", 0.8),
    "f1: yes is not yes and more": ("f1", "yes", "yes it is", 0),
    "f1: the best label": ("f1", "brown fox", ["cat", "brown fox"], 1),
    # search_r1
    "an answer without tags": ("search_r1", "Paris", "Paris", 0),
    "an answer with tags": ("search_r1", "<answer>Paris</answer>", "Paris", 1),
    # gpqa
    "gpqa": ("gpqa", "The answer is B.", "B", 1),
    "gpqa: denied first": ("gpqa", "The answer is not A. The answer is B.", "B", 1),
    "gpqa: denied, and no other": ("gpqa", "The answer is not A.", "A", 0),
    "gpqa: because": ("gpqa", "The answer: because of D, it must be (C).", "C", 1),
    "gpqa: the last statement": ("gpqa", "The answer is A. Wait. The answer is B.", "B", 1),
    "gpqa: an article": ("gpqa", "The answer is a proton, so C", "C", 1),
    "gpqa: A sentence": ("gpqa", "Choose C. A photon has no mass.", "C", 1),
    "gpqa: boxed": ("gpqa", r"So \boxed{\text{(D)}}", "D", 1),
    "gpqa: bold": ("gpqa", "**Answer: (B)**", "B", 1),
    "gpqa: a letter of no choice": ("gpqa", "The answer is K.", "K", 0),
    "gpqa: in a thought": ("gpqa", "<think>The answer is A", "A", 0),
    "gpqa: an index": ("gpqa", "Answer: C", 2, 1),
    "gpqa: an empty answer": ("gpqa", "", "A", 0),
}


def written(text, label, **given):
    return ModelOutput.of_turns([text], label=label, **given)


async def value(name, wrote):
    grade = await getattr(rewards, name).grade(wrote)
    return getattr(grade, "value", grade)


@pytest.mark.thorough
@pytest.mark.parametrize("case", CASES, ids=[name.replace(" ", "_") for name in CASES])
async def test_what_naive_graders_get_wrong(case):
    name, text, label, right = CASES[case]
    assert await value(name, written(text, label)) == pytest.approx(right)


def test_of_a_long_text_only_the_end_is_looked_at():
    assert boxed("x" * 10_000_000 + r"\boxed{1}") == "1"
    assert boxed(r"\boxed{1}" + "x" * LONGEST) is None
