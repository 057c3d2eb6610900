"""Multiple choice: statements about letters, and about the texts of options."""

from __future__ import annotations

import pytest

from agentrl.errors import ConfigError
from agentrl.rewards import boxed_gpqa, gpqa
from agentrl.rewards.choice import Options
from agentrl.rewards.letters import chosen
from agentrl.trajectory.model_output import ModelOutput
from agentrl.types import Task

SPEEDS = {"choices": ["4 m/s", "12 m/s", "7.5 m/s", "none of these"]}
CELL = {"choices": ["mitochondria", "nucleus", "ribosome", "cell wall"]}
AMOUNTS = {"choices": ["0.5 mol", "1.5 mol", "15 mol", "no reaction"]}
CAPITALS = {"choices": ["Paris", "London", "Rome", "Madrid"]}
FORCES = {"choices": ["10 N", "20 N", "20.5 N", "zero"]}
GLANDS = {"choices": ["Vitamin D", "insulin", "the liver", "growth hormone"]}

ONE_BY_ONE = """Let me check each option.
A: The energy doubles, so it is out.
B: This contradicts the first law.
C: Consistent with the data.
D: Not possible.

Therefore the answer is C."""

LETTERS = [
    # what a model wrote, the letter that it chooses
    ("The final answer is C. Option D is incorrect.", "C"),
    ("(a)", "A"),
    ("a)", "A"),
    ("**C**", "C"),
    ("The answer is: (C) 4 m/s", "C"),
    ("D. it can't be A or B", "D"),
    ("A or B", None),
    ("A and C", None),
    ("The answer is not A.", None),
    ("The answer: because of D, it must be (C).", "C"),
    ("The answer is A. Wait. The answer is B.", "B"),
    ("The answer is a proton, so C", "C"),
    ("Choose C. A photon has no mass.", "C"),
    ("**Answer: (B)**", "B"),
    ("The answer is K.", None),
    ("Rule out C.", None),
    ("C is wrong.", None),
    ("The answer is D, unlike A.", "D"),
    ("Wait, the answer is B", "B"),
    ("The answer is A because light is fast.", "A"),
    ("Answer: a", "A"),
    ("the answer is b.", "B"),
    ("I am sure: E", "E"),
    ("C", "C"),
    ("c", "C"),
    ("The answer is B and A is wrong.", "B"),
    ("Not D, but B.", "B"),
    ("A and B are wrong, C is right.", "C"),
    ("The correct choice: D)", "D"),
    ("I'd say (A).", "A"),
    ("A is the answer.", "A"),
    ("The answer is neither A nor B, it is C.", "C"),
    ("Could it be A? No. It's B.", "B"),
    ("If A were true, B would follow. So C.", "C"),
    ("A) 4\nB) 5\nC) 6\n\nThe answer is B.", "B"),
    ("A) 4\nB) 5\nC) 6", None),
    ("B rather than A", "B"),
    ("A: wrong\nB: correct\nC: wrong", "B"),
    ("So the answer is option C, which means D fails.", "C"),
    ("The answer is B. B does not dissolve.", "B"),
    ("The answer is B. Hmm, B is wrong.", None),
    ("Answer C", "C"),
    ("Option C.", "C"),
    ("**Final answer**\n\n(D)", "D"),
    ("\\text{(C)}", "C"),
    ("It's A", "A"),
    ("Between A and B, B is better than A.", "B"),
    ("I prefer B over A.", "B"),
    ("The answer must be A, not because of C.", "A"),
    ("My answer: A, B is wrong.", "A"),
    ("It is not surprising that the answer is C.", "C"),
    ("The correct answers are A and B.", None),
    ("The answer: A, C", None),
    ("answer is c", "C"),
    ("Only D", "D"),
    ("None of A, B and C. So D.", "D"),
    ("B-cells make antibodies; the answer is C.", "C"),
    ("Rate = k[A][B], so D.", "D"),
    ("The answer is A not B", "A"),
    ("The answer is A (not B).", "A"),
    ("D. No other fits.", "D"),
    ("A. This follows from B.", "A"),
    ("C. Because A is wrong", "C"),
    ("The answer is B: A is too small.", "B"),
]

PAIRS = [
    # what a model wrote, the label, the metadata, the reward
    ("The answer is 20 N.", "B", FORCES, 1),
    ("20.5 N", "B", FORCES, 0),
    ("20.5 N", "C", FORCES, 1),
    ("Answer: zero", "D", FORCES, 1),
    ("Not 10 N but 20 N.", 1, FORCES, 1),
    ("The answer is Vitamin D.", "A", GLANDS, 1),
    ("Vitamin D.", "D", GLANDS, 0),
    ("The liver makes insulin. The answer: liver", "C", GLANDS, 1),
    ("insulin or growth hormone", "B", GLANDS, 0),
    ("(B) insulin", "insulin", GLANDS, 1),
    ("Insulin", "B. insulin", GLANDS, 1),
    ("It is **growth hormone**.", 3, GLANDS, 1),
    ("The answer is D (growth hormone).", "D", GLANDS, 1),
    ("\\boxed{growth hormone}", "D", GLANDS, 1),
    ("\\boxed{B, C}", "B", GLANDS, 0),
    ("\\boxed{42} so the answer is B", "B", {}, 1),
    ("Paris", "Paris", {}, 1),
    ("The answer is not Paris.", "Paris", {}, 0),
    ("B", "B", {"correct_letter": "C"}, 0),
    ("C", "x", {"correct_letter": "c"}, 1),
    ("The capital is Paris", "x", {"correct_answer": "Paris"}, 1),
    ("A", "(A)", {}, 1),
    ("K", "A", {"valid_letters": ["K", "A"]}, 0),
    ("The final answer is C. Option D is incorrect.", "D", {}, 0),
    ("The final answer is C. Option D is incorrect.", "C", {}, 1),
    ("My answer is B; A and D are both wrong.", "B", {}, 1),
    ("My answer is B; A and D are both wrong.", "D", {}, 0),
    ("(b)", "B", {}, 1),
    ("d)", "D", {}, 1),
    ("c.", "C", {}, 1),
    ("b", "B", {}, 1),
    ("__A__", "A", {}, 1),
    ("*A*", "A", {}, 1),
    ("`D`", "D", {}, 1),
    ("A", "A", {}, 1),
    ("A.", "A", {}, 1),
    ("Either A or B.", "A", {}, 0),
    ("A and C", "C", {}, 0),
    ("A, C", "A", {}, 0),
    ("B/C", "B", {}, 0),
    ("Answer: B and D", "B", {}, 0),
    ("The correct answer is (A) or (C).", "C", {}, 0),
    ("\\boxed{A, B}", "A", {}, 0),
    ("\\boxed{\\textbf{(B)}}", "B", {}, 1),
    ("$\\boxed{\\mathrm{D}}$", "D", {}, 1),
    ("The answer is $\\boxed{C}$, unlike A.", "C", {}, 1),
    ("The answer is: (C) 7.5 m/s", "C", SPEEDS, 1),
    ("B. It cannot be A, C or D.", "B", {}, 1),
    ("B. It cannot be A, C or D.", "D", {}, 0),
    ("It's not A, so it is B.", "B", {}, 1),
    ("It's not A, so it is B.", "A", {}, 0),
    ("We can eliminate A and C. Between B and D, D fits better.", "D", {}, 1),
    ("We can eliminate A and C. Between B and D, D fits better.", "B", {}, 0),
    ("The answer is A. Hmm, wait. Actually, I made a mistake: the answer is C.", "C", {}, 1),
    ("The answer is A. Hmm, wait. Actually, I made a mistake: the answer is C.", "A", {}, 0),
    ("Option A is false. Option B is false. Option C is true. Option D is false.", "C", {}, 1),
    ("Option A is false. Option B is false. Option C is true. Option D is false.", "D", {}, 0),
    ("Answer: c", "C", {}, 1),
    ("ANSWER: D", "D", {}, 1),
    ("Final Answer: **(A)**", "A", {}, 1),
    ("## Answer\n\nB", "B", {}, 1),
    ("The answer is a mitochondrion, which is option A.", "A", {}, 1),
    ("I think a photon has spin 1, so I choose B.", "B", {}, 1),
    ("I would go with D.", "D", {}, 1),
    ("I pick option (C).", "C", {}, 1),
    ("The ribosome.", "C", CELL, 1),
    ("The answer is the nucleus, not the mitochondria.", "B", CELL, 1),
    ("nucleus or ribosome", "B", CELL, 0),
    ("12 m/s", "12 m/s", SPEEDS, 1),
    ("The answer is 4 m/s.", "B", SPEEDS, 0),
    ("Therefore, the correct option is B, because A violates the second law.", "B", {}, 1),
    ("A is incorrect because energy is conserved. B is incorrect too. Hence C.", "C", {}, 1),
    ("The answer cannot be determined.", "A", {}, 0),
    ("I don't know.", "D", {}, 0),
    ("It must be D since options A, B and C all contradict the data.", "D", {}, 1),
    ("Choice A looks right at first, but the answer is D.", "D", {}, 1),
    ("Unlike option B, option A is consistent. So the answer is A.", "A", {}, 1),
    ("The answer isn't C.", "C", {}, 0),
    ("The answer isn't C but B.", "B", {}, 1),
    ("The answer is not A but D", "D", {}, 1),
    ("All options except B are wrong.", "B", {}, 1),
    ("<answer>D</answer>", "D", {}, 1),
    ("The correct answer is B (12 m/s), not C (7.5 m/s).", "B", SPEEDS, 1),
    ("The correct answer is B (12 m/s), not C (7.5 m/s).", "C", SPEEDS, 0),
    ("Answer: A\n\nExplanation: B is a common mistake, and D ignores friction.", "A", {}, 1),
    ("Vitamin D is involved, so the answer is A.", "A", {}, 1),
    ("Hepatitis B. The answer: (C)", "C", {}, 1),
    ("A vs. B: B is better. Final: B", "B", {}, 1),
    ("The answer is **D. none of these**", "D", SPEEDS, 1),
    ("Answer: E", "E", {}, 1),
    ("Answer: E", "A", SPEEDS, 0),
    ("After ruling out B and C, the remaining candidates are A and D. D has the wrong sign. Answer: A", "A", {}, 1),
    ("After ruling out B and C, the remaining candidates are A and D. D has the wrong sign. Answer: A", "D", {}, 0),
    ("The correct answer is option (b).", "B", {}, 1),
    ("The correct answer is option (b).", "A", {}, 0),
    ("**Correct Option: D**", "D", {}, 1),
    ("Option B", "B", {}, 1),
    ("The answer is C, not D.", "D", {}, 0),
    ("The answer is C, not D.", "C", {}, 1),
    ("I don't think it's D.", "D", {}, 0),
    ("I doubt D. I'd choose A.", "A", {}, 1),
    ("Not A. Not B. Not C. Hence D.", "D", {}, 1),
    ("Not A. Not B. Not C. Hence D.", "A", {}, 0),
    ("A is tempting, but B is the correct choice.", "B", {}, 1),
    ("A is tempting, but B is the correct choice.", "A", {}, 0),
    ("The answer could be A or C; I cannot decide.", "A", {}, 0),
    ("Both B and D", "D", {}, 0),
    ("B & D", "D", {}, 0),
    ("All of the above", "D", {}, 0),
    ("The answer is B. Correction: the answer is D.", "D", {}, 1),
    ("The answer is B. Correction: the answer is D.", "B", {}, 0),
    ("Answer: D. Wait, no. It should be A.", "A", {}, 1),
    ("Answer: D. Wait, no. It should be A.", "D", {}, 0),
    ("I initially chose C, but after checking I choose B.", "B", {}, 1),
    ("I initially chose C, but after checking I choose B.", "C", {}, 0),
    ("The answer is $\\text{D}$.", "D", {}, 1),
    ("The answer is $\\mathbf{(A)}$", "A", {}, 1),
    ("\\boxed{a}", "A", {}, 1),
    ("\\boxed{(D)~15\\text{ mol}}", "D", {}, 1),
    ("\\boxed{1.5 mol}", "B", AMOUNTS, 1),
    ("\\boxed{15 mol}", "B", AMOUNTS, 0),
    ("1.5 mol", "B", AMOUNTS, 1),
    ("15 mol", "B", AMOUNTS, 0),
    ("It produces 0.5 mol, not 1.5 mol.", "A", AMOUNTS, 1),
    ("It produces 0.5 mol, not 1.5 mol.", "B", AMOUNTS, 0),
    ("London", 1, CAPITALS, 1),
    ("The capital is Rome.", "Rome", CAPITALS, 1),
    ("Neither Paris nor London; Madrid.", "D", CAPITALS, 1),
    ("Neither Paris nor London; Madrid.", "A", CAPITALS, 0),
    ("Paris or Rome", "A", CAPITALS, 0),
    ("<answer>(C)</answer>", "C", {}, 1),
    ("<answer>C or D</answer>", "C", {}, 0),
    ("Let's think. A proton is heavy. An electron is light. The answer: B", "B", {}, 1),
    ("A proton is heavy.", "A", {}, 0),
    ("I have no idea.", "I", {}, 0),
    ("The final answer is: **b)**", "B", {}, 1),
    ("Therefore, (C) is correct.", "C", {}, 1),
    ("Therefore (C) is incorrect.", "C", {}, 0),
    ("It is not true that C is correct.", "C", {}, 0),
    ("C isn't right.", "C", {}, 0),
    ("Everything but C is wrong.", "C", {}, 1),
    ("Every option except D is wrong, so D.", "D", {}, 1),
    ("Statement A is true while B, C and D are false.", "A", {}, 1),
    ("Statement A is true while B, C and D are false.", "C", {}, 0),
    ("Only option B satisfies the condition.", "B", {}, 1),
    ("The question asks about A. The answer is C.", "C", {}, 1),
    ("The answer: C. (A would need friction, B needs no gravity.)", "C", {}, 1),
    ("D\n\nReasoning: A and B are out because of symmetry.", "D", {}, 1),
    ("Answer - B", "B", {}, 1),
    ("Ans: C", "C", {}, 1),
    ("The right one is A", "A", {}, 1),
    ("answer is (d), since b is negative", "D", {}, 1),
    ("I eliminated A, B, and D.", "C", {}, 0),
    ("I eliminated A, B, and D.", "B", {}, 0),
    ("The answer is D because A, B and C do not conserve charge.", "D", {}, 1),
    ("My choice is C; D would be the answer if the mass were doubled.", "C", {}, 1),
    ("My choice is C; D would be the answer if the mass were doubled.", "D", {}, 0),
    ("C > B > A, so the largest is C.", "C", {}, 1),
    ("The best answer is C rather than D", "C", {}, 1),
    ("The answer is A? No, B.", "B", {}, 1),
    ("The answer is A? No, B.", "A", {}, 0),
    ("Solution: B", "B", {}, 1),
    ("My final answer: C. Thanks!", "C", {}, 1),
    (
        ONE_BY_ONE,
        "C",
        {},
        1,
    ),
    (
        ONE_BY_ONE,
        "B",
        {},
        0,
    ),
    (
        "Option A is incorrect because of the sign. Option B is correct. Option C is incorrect. Option D is incorrect.",
        "B",
        {},
        1,
    ),
    (
        "Option A is incorrect because of the sign. Option B is correct. Option C is incorrect. Option D is incorrect.",
        "D",
        {},
        0,
    ),
    ("The final answer is B. I also considered option A and option D.", "B", {}, 1),
    ("The final answer is B. I also considered option A and option D.", "D", {}, 0),
    ("The answer is not option C, it's option A.", "A", {}, 1),
    ("The answer is not option C, it's option A.", "C", {}, 0),
    ("Answer: (C)\n\nThe other options, A, B and D, are wrong.", "C", {}, 1),
    ("Answer: (C)\n\nThe other options, A, B and D, are wrong.", "D", {}, 0),
    ("I'd say either C or D, but more likely C.", "C", {}, 1),
    ("**Answer:** D", "D", {}, 1),
    ("**Answer**: **(D)** 15 mol", "D", {}, 1),
    ("The answer is (B), since (A) is not possible, and (C) and (D) are not either.", "B", {}, 1),
    ("The answer is (B), since (A) is not possible, and (C) and (D) are not either.", "A", {}, 0),
    ("Thus D.", "D", {}, 1),
    ("D is the only possibility.", "D", {}, 1),
    ("It has to be A.", "A", {}, 1),
    ("A, definitely.", "A", {}, 1),
    ("I am not sure, but I think B.", "B", {}, 1),
    ("Definitely not B.", "B", {}, 0),
    ("B? No.", "B", {}, 0),
    ("The correct answer is D. The answer B would be correct if T were constant.", "D", {}, 1),
    ("The correct answer is D. The answer B would be correct if T were constant.", "B", {}, 0),
    ("The answer: none of A, B, C", "C", {}, 0),
    ("So, the correct choice among the options is option D.", "D", {}, 1),
    ('The answer is "C".', "C", {}, 1),
    ("The answer is 'C'.", "C", {}, 1),
    ("answer=B", "B", {}, 1),
    ('{"answer": "C"}', "C", {}, 1),
    ("Final answer: A/B", "A", {}, 0),
    ("[B]", "B", {}, 1),
    ("<b>C</b>", "C", {}, 1),
    ("The answer is C).", "C", {}, 1),
    ("I think the answer is B, but it might be C.", "B", {}, 1),
    ("I think the answer is B, but it might be C.", "C", {}, 0),
    ("D isn't correct, C is.", "C", {}, 1),
    ("D isn't correct, C is.", "D", {}, 0),
    ("The answer is A. No wait, that's wrong. B is the answer.", "B", {}, 1),
    ("The answer is A. No wait, that's wrong. B is the answer.", "A", {}, 0),
    ("Instead of A, the answer should be D.", "D", {}, 1),
    ("Instead of A, the answer should be D.", "A", {}, 0),
    ("My initial answer was A, which is wrong; the right answer is C.", "C", {}, 1),
    ("My initial answer was A, which is wrong; the right answer is C.", "A", {}, 0),
    ("The answer is the letter B", "B", {}, 1),
    ("The correct answer here would be: B.", "B", {}, 1),
    ("We get x = 3, which corresponds to option D.", "D", {}, 1),
    ("This matches choice (C).", "C", {}, 1),
    ("This rules out B.", "B", {}, 0),
    ("Since A and B are equivalent, neither can be right, leaving C.", "C", {}, 1),
    ("Between C and D I choose D over C.", "D", {}, 1),
    ("Correct answer: A. Incorrect: B, C, D.", "A", {}, 1),
    ("Correct answer: A. Incorrect: B, C, D.", "B", {}, 0),
    ("A) Yes", "A", {}, 1),
    ("C: because light is faster", "C", {}, 1),
    ("(D)\n(since the others fail)", "D", {}, 1),
    ("The answer is E.", "E", {"choices": ["1", "2", "3", "4"]}, 0),
    ("Every answer other than B is false.", "B", {}, 1),
]


@pytest.mark.parametrize(("text", "letter"), LETTERS)
def test_the_letter_that_a_text_chooses(text, letter):
    assert chosen(text, "ABCDEFGHIJ")[0] == letter


@pytest.mark.parametrize(("text", "label", "metadata", "reward"), PAIRS)
async def test_the_reward_of_a_choice(text, label, metadata, reward):
    assert await gpqa.grade(ModelOutput.of_turns([text], label=label, metadata=metadata)) == reward


@pytest.mark.parametrize("text", ["Z", "The answer is Z.", "(z)", r"\boxed{Z}", "Answer: Z"])
async def test_no_letter_stands_for_a_label_that_is_a_text(text):
    assert await gpqa.grade(ModelOutput.of_turns([text], label="Paris")) == 0
    assert await gpqa.grade(ModelOutput.of_turns(["It is plan Z."], label="plan Z")) == 1
    letters = {"valid_letters": ["Y", "Z"]}
    assert await gpqa.grade(ModelOutput.of_turns([text], label="Z", metadata=letters)) == 1


async def test_only_the_box_counts_with_slimes_prefix():
    for text, reward in ((r"The answer is A. \\boxed{B}", 1), ("The answer is B.", 0), (r"\\boxed{A} or B", 0)):
        assert await boxed_gpqa.grade(ModelOutput.of_turns([text], label="B")) == reward


@pytest.mark.parametrize(
    ("label", "metadata", "says"),
    [
        ("", {}, "none of the options A, B"),
        (None, {}, "none of the options"),
        ("E", {"choices": ["1", "2"]}, "none of the options A, B;"),
        (7, {"choices": ["1", "2"]}, "none of the options A, B;"),
        ("x", {"correct_letter": "Q"}, "none of the options"),
        ('["B", "C"]', {}, "JSON text"),
        ("First, the force.\nThen the mass.", {}, "several lines"),
    ],
)
def test_labels_that_no_choice_matches(label, metadata, says):
    with pytest.raises(ConfigError, match=says):
        gpqa.check_task(Task(prompt="q", label=label, metadata=metadata))


@pytest.mark.parametrize(
    ("label", "metadata"),
    [("b", {}), (1, {"choices": ["1", "2"]}), ("Paris", {}), ("(B) two", {}), ("", {"correct_letter": "a"})],
)
def test_labels_that_a_choice_matches(label, metadata):
    gpqa.check_task(Task(prompt="q", label=label, metadata=metadata))


@pytest.mark.thorough
@pytest.mark.parametrize(
    "text", ["A " * 10_000, "A, B, " * 3_300, "A answer is " * 1_600, "(" * 20_000, "A) x\n" * 4_000, "a b c " * 3_300]
)
def test_no_text_takes_long(text):
    """Each takes about a second. A quadratic reading takes minutes."""
    assert Options.of("A", {"choices": ["a b c d", "12", "b"]}).chosen_in(text[:20_000]) is None
