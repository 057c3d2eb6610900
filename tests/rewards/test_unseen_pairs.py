r"""Pairs of an answer and a label that the authors of the graders had not seen while they wrote them.

Each table says which answers are right. First contact: docs/evidence.md.
"""

from __future__ import annotations

import pytest

from agentrl.rewards import em, f1, gpqa, math, search_r1, sub_em
from agentrl.trajectory.model_output import ModelOutput

RIGHT_MATHS = [
    ("12", "12"),
    ("+12", "12"),
    ("12.0", "12"),
    (r"\frac{3}{4}", "0.75"),
    ("3/4", r"\dfrac{3}{4}"),
    (r"2\sqrt{3}", r"\sqrt{12}"),
    ("2*sqrt(3)", r"2\sqrt{3}"),
    ("5pi/6", r"\frac{5\pi}{6}"),
    (r"x^2+2x+1", r"(x+1)^2"),
    (r"(x-1)(x+1)", "x^2-1"),
    (r"(1, -2)", r"\left(1,-2\right)"),
    (r"\{3, 1, 2\}", r"\{1,2,3\}"),
    (r"(-\infty, 4]", r"\left(-\infty,4\right]"),
    ("x <= 4", r"x \leq 4"),
    ("y = 3x + 2", r"y=2+3x"),
    ("1,250,000", "1250000"),
    (r"\$45", "45"),
    (r"45^\circ", "45"),
    (r"30\%", "30\\%"),
    ("7 apples", "7"),
    (r"15\text{ minutes}", "15"),
    (r"\text{Friday}", "Friday"),
    (r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}"),
    (r"0.\overline{6}", r"\frac{2}{3}"),
    (r"3+4i", "4i+3"),
    (r"\frac{1+\sqrt{5}}{2}", r"\frac{\sqrt5+1}{2}"),
]
WRONG_MATHS = [
    ("7", "7n"),
    ("7k", "7"),
    (r"\frac{2}{3}", r"\frac{2}{3}\pi"),
    ("3^{40}+1", "3^{40}"),
    ("100000000000000000000001", "100000000000000000000002"),
    (r"1011_2", r"1011_3"),
    ("11", "1011_2"),
    ("y=2x+1", "y=2x+2"),
    ("x=5", "y=5"),
    ("f(x)=x^2", "f(x)=x^3"),
    ("a+b=3", "a-b=3"),
    (r"[0,1)", r"[0,1]"),
    (r"(2,1)", r"(1,2)"),
    (r"\{1,2\}", r"\{1,2,3\}"),
    ("5+6", "11"),
    (r"\binom{5}{2}", "10"),
    (r"10\cdot 9", "90"),
    ("2i", "2"),
    (r"6\text{ hours }15\text{ minutes}", r"6\text{ hours }45\text{ minutes}"),
    (r"5\text{ cm}", r"5\text{ m}"),
    (r"\text{Monday}", "Friday"),
    (r"\sin x", r"\cos x"),
    (r"\ln 2", r"\log_{10} 2"),
    (r"x>3", r"x \ge 3"),
    (r"3,4", "3"),
    ("-1/2", "1/2"),
    (r"\begin{pmatrix} 1 & 2 \\ 3 & 5 \end{pmatrix}", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}"),
    (r"50\%", "5"),
    ("0.3333", r"\frac{1}{3}"),
    (r"e^{2}", r"e^{3}"),
    (r"12:30", "12:45"),
]
CHOICES = [
    ("The answer is B.", "B", 1),
    ("Answer: (b)", "B", 1),
    ("**Answer: D**", "D", 1),
    (r"So we get \boxed{A}", "A", 1),
    (r"\boxed{\text{(C)}}", "C", 1),
    ("I choose option C because A and B fail.", "C", 1),
    ("C", "C", 1),
    ("(D)", "D", 1),
    ("d)", "D", 1),
    ("Options A, B and D are wrong, so the answer is C.", "C", 1),
    ("The answer is C, since option D contradicts the premise.", "C", 1),
    ("The correct choice is A. Option B would need more heat.", "A", 1),
    ("At first I thought the answer was A. Actually, the answer is B.", "B", 1),
    ("The answer is not A. The answer is B.", "B", 1),
    ("The final answer is **(A)**.", "A", 1),
    ("My final answer: A", "A", 1),
    ("Therefore, B is the correct answer.", "B", 1),
    ("B. Mitochondria", "B", 1),
    ("The right option is D, not C.", "D", 1),
    ("Final answer: B) 42 m/s", "B", 1),
    ("The answer is C. Options A and B are incorrect.", "A", 0),
    ("The answer is C. Options A and B are incorrect.", "B", 0),
    ("The answer is C, since option D contradicts the premise.", "D", 0),
    ("The answer is not A.", "A", 0),
    ("Option A is false.", "A", 0),
    ("It is definitely not option B.", "B", 0),
    ("The answer is either A or B.", "A", 0),
    ("The answer is either A or B.", "B", 0),
    ("Answer: A, C", "C", 0),
    ("We can rule out option C.", "C", 0),
    ("D is wrong.", "D", 0),
    ("The right option is D, not C.", "C", 0),
    ("I chose B at first, but the answer is C", "B", 0),
    ("B cannot be the answer.", "B", 0),
    ("The answer is a matter of taste.", "A", 0),
    ("I am not sure.", "I", 0),
    ("The correct answer isn't D.", "D", 0),
    (r"The answer is C, I first wrote \boxed{C}", "C", 1),
    ("Choice B is the best; choice A is a distractor.", "A", 0),
    ("Choice B is the best; choice A is a distractor.", "B", 1),
]
EXACT = [
    ("<answer>A</answer>", "A", 1),
    ("<answer>the</answer>", "The", 1),
    ("<answer>An</answer>", "an", 1),
    ("<answer>B</answer>", "A", 0),
    ("<answer></answer>", "A", 0),
    ("<answer>the</answer>", "A", 0),
    ("<answer>The Beatles</answer>", "Beatles", 1),
    ("<answer>beatles.</answer>", "The Beatles", 1),
    ("<answer>Paris, France</answer>", "Paris", 0),
    ("<answer>C++</answer>", "C++", 1),
    ("<answer>!</answer>", "!", 1),
    ("<answer>?</answer>", "!", 0),
    ("<answer>-3</answer>", "3", 0),
    ("<answer>3.5</answer>", "35", 0),
    ("<answer>1,000</answer>", "1000", 1),
    ("<answer>50 percent</answer>", "50%", 1),
    ("<answer>50</answer>", "50%", 0),
    ("<answer>Zürich</answer>", "zürich", 1),
    ("<answer>Vitamin A</answer>", "Vitamin A", 1),
    ("<answer>vitamin a</answer>", "vitamin C", 0),
    ("<answer>A</answer><answer>B</answer>", "B", 1),
    ("<answer>A</answer><answer>B</answer>", "A", 0),
    ("<answer>A", "A", 0),
    ("<answer>yes</answer>", "no", 0),
    ("<answer> an </answer>", "An", 1),
    ("<answer>new york city</answer>", "New York City", 1),
    ("<answer>York</answer>", "New York", 0),
    ("<answer>2024-01-02</answer>", "2024-01-02", 1),
    ("<answer>2024-01-02</answer>", "20240102", 0),
    ("<answer>½</answer>", "½", 1),
    ("<answer>O'Brien</answer>", "OBrien", 1),
    ("<answer>a</answer>", "A", 1),
    ("<answer>a b</answer>", "A B", 1),
    ("<answer>…</answer>", "A", 0),
    ("<answer>10:30</answer>", "1030", 0),
    ("<answer>AT&T</answer>", "AT&T", 1),
    ("<answer>東京</answer>", "東京", 1),
    ("<answer>東京</answer>", "京都", 0),
    ("<answer>The The</answer>", "The The", 1),
    ("<answer>a</answer>", "the", 0),
]


async def graded(grader, answer, label):
    grade = await grader.grade(ModelOutput.of_turns([answer], label=label))
    return getattr(grade, "value", grade)


@pytest.mark.parametrize(("answer", "label"), RIGHT_MATHS)
async def test_a_right_answer_is_paid(answer, label):
    assert await graded(math, rf"The result is \boxed{{{answer}}}.", label) == 1


@pytest.mark.parametrize(("answer", "label"), WRONG_MATHS)
async def test_a_wrong_answer_is_not_paid(answer, label):
    assert await graded(math, rf"The result is \boxed{{{answer}}}.", label) == 0


@pytest.mark.parametrize(("answer", "label", "reward"), CHOICES)
async def test_a_choice_is_read_as_it_is_meant(answer, label, reward):
    assert await graded(gpqa, answer, label) == reward


@pytest.mark.parametrize(("answer", "label", "reward"), EXACT)
@pytest.mark.parametrize("grader", [em, search_r1], ids=["em", "search_r1"])
async def test_an_exact_match_is_read_as_it_is_meant(grader, answer, label, reward):
    assert await graded(grader, answer, label) == reward


@pytest.mark.parametrize(("answer", "label", "reward"), [row for row in EXACT if row[2]])
@pytest.mark.parametrize("grader", [f1, sub_em], ids=["f1", "sub_em"])
async def test_equal_texts_earn_all(grader, answer, label, reward):
    assert await graded(grader, answer, label) == reward
