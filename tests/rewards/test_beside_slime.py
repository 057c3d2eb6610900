"""The flaws of slime's Search-R1 example and of its rm_hub as cases: ours is right, slime's grade stands beside it.

Printed as a table with `pytest -s`. slime's own functions are called, from SLIME_SRC.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from agentrl import rewards
from agentrl.rewards.searching import has_format
from agentrl.trajectory.model_output import ModelOutput
from tests.rewards.others import importable, load_file, need, source

PROMPT = "<|im_start|>user\nFor example, <answer> Beijing </answer>. Question: {}<|im_end|>\n<|im_start|>assistant\n"
SEARCH = "<think>a</think> <search>q</search>"
CAPITAL = "\n\n<information>Doc 1(Title: France) Paris</information>\n\n"
ANSWERED = "\n\n<information>Doc 1(Title: Quiz) <answer>Paris</answer></information>\n\n"


def episode(*turns: str, label: Any = "Paris", observed: tuple[str, ...] = (), prompt: str = PROMPT) -> ModelOutput:
    return ModelOutput.of_turns(turns, observed=observed, label=label, prompt=prompt.format("?"))


def joined(written: ModelOutput) -> str:
    """What slime's example grades: prompt and response, whoever wrote it."""
    observed = [*written.observed, *[""] * len(written.turns)]
    return written.prompt + "".join(turn + after for turn, after in zip(written.turns, observed, strict=False))


SEARCH_R1 = {
    # name: (episode, the right grade, whether slime's example gives another)
    "right": (episode(SEARCH, "<think>b</think> <answer>Paris</answer>", observed=(CAPITAL,)), 1.0, False),
    "wrong": (episode(SEARCH, "<think>b</think> <answer>Lyon</answer>", observed=(CAPITAL,)), 0.0, False),
    "1.5 is not 15": (episode("<think>b</think> <answer>1.5</answer>", label="15"), 0.0, True),
    "-5 is not 5": (episode("<think>b</think> <answer>-5</answer>", label="5"), 0.0, True),
    "the passage answers": (episode(SEARCH, "<think>I do not know.</think>", observed=(ANSWERED,)), 0.0, True),
    "the passage answers later": (episode(SEARCH, "<answer>Lyon", observed=(ANSWERED,)), 0.0, True),
    "an unfinished thought": (episode("<think>perhaps <answer>Paris</answer>"), 0.0, True),
    "a prompt without an example": (
        episode("<think>b</think> <answer>Paris</answer>", prompt="<|im_start|>assistant\n"),
        1.0,
        True,
    ),
    "the prompt's own answer": (episode("no idea", label="Beijing"), 0.0, False),
}


@pytest.fixture(scope="module")
def example():
    """slime's examples/search-r1/qa_em_format.py, which prints some of what it grades."""
    return load_file(source("SLIME_SRC", "slime") / "examples" / "search-r1" / "qa_em_format.py")


@pytest.mark.parametrize("case", SEARCH_R1)
async def test_search_r1_beside_slimes_example(case, example, capsys):
    wrote, right, slime_errs = SEARCH_R1[case]
    ours = (await rewards.search_r1.grade(wrote)).value
    theirs = example.compute_score_em(joined(wrote), {"target": [wrote.label]}, format_score=0.2)
    show(capsys, case, right, ours, theirs)
    assert ours == right
    assert (theirs != right) == slime_errs


@pytest.mark.parametrize(
    ("marker", "slime_sees_it"),
    [
        ("<|im_start|>assistant\n", True),
        ("<|start_header_id|>assistant<|end_header_id|>\n\n", False),
        ("[/INST]", False),
    ],
)
def test_the_format_holds_under_any_chat_template(marker, slime_sees_it, example):
    """slime's check looks for one template's marker, so under others no format is ever valid."""
    wrote = episode(SEARCH, "<think>b</think> <answer>Paris</answer>", observed=(CAPITAL,), prompt=marker)
    assert has_format(wrote)
    assert example.is_valid_sequence(joined(wrote))[0] is slime_sees_it


@pytest.mark.parametrize("shape", ["structure_format_score", "final_format_score", "retrieval_score"])
async def test_the_papers_shaping_is_slimes_where_both_read_the_same(shape, example):
    """Each branch of the shaping, with the paper's weights: structure 0.2, final 0.1, retrieval 0.1."""
    weights = {"structure_format_score": 0.2, "final_format_score": 0.1, "retrieval_score": 0.1}
    turns = {
        "right": (SEARCH, "<think>b</think> <answer>Paris</answer>"),
        "wrong": (SEARCH, "<think>b</think> <answer>Lyon</answer>"),
        "right, unformed": (SEARCH, "<answer>Paris</answer>"),
        "wrong, unformed": (SEARCH, "<answer>Lyon</answer>"),
        "none": (SEARCH, "<think>b</think>"),
    }
    found = CAPITAL if shape == "retrieval_score" else CAPITAL.replace("Paris", "Lyon")
    shaped = rewards.search_r1_retrieval
    for name, said in turns.items():
        wrote = episode(*said, observed=(found,))
        theirs = example.compute_score_em(joined(wrote), {"target": ["Paris"]}, **weights)
        assert (await shaped.grade(wrote)).value == pytest.approx(theirs), name


HUB: dict[str, tuple[str, str, Any, float, bool]] = {
    # name: (rm_type, response, label, the right grade, whether slime's gives another)
    "math: 1.5 is not 15": ("math", r"\boxed{1.5}", "15", 0, False),
    "math: an unreduced fraction": ("math", r"\boxed{\frac{2}{4}}", r"\frac{1}{2}", 1, True),
    "math: a decimal": ("math", r"\boxed{0.25}", r"\frac{1}{4}", 1, False),
    "math: a set in another order": ("math", r"\boxed{\{2,1\}}", r"\{1,2\}", 1, True),
    "math: an interval that is closed": ("math", r"\boxed{[1,2]}", "(1,2)", 0, False),
    "math: matrices": (
        "math",
        r"\boxed{\begin{bmatrix}1&2\\3&4\end{bmatrix}}",
        r"\begin{pmatrix}1&2\\3&4\end{pmatrix}",
        1,
        False,
    ),
    "math: metres are not centimetres": ("math", r"\boxed{5\text{ m}}", r"5\text{ cm}", 0, True),
    "math: a power that is not computed": ("math", r"\boxed{2^{10}}", "1024", 0, False),
    "math: a power for a power": ("math", r"\boxed{1024}", "2^{10}", 1, True),
    "math: another unit": ("math", r"\boxed{7 days}", "7 weeks", 0, True),
    "math: in an unfinished thought": ("math", r"<think>perhaps \boxed{5}", "5", 0, True),
    "math: Arabic digits": ("math", r"\boxed{٣}", "3", 1, False),
    "dapo: a point": ("dapo", "Answer: 4.2", "42", -1, False),
    "dapo: words removed from words": ("dapo", "Answer: 4 km 2", "42", -1, True),
    "dapo: far from the end": ("dapo", "Answer: 42\n" + "I am sure. " * 60, "42", 1, True),
    "gpqa: denied first": ("gpqa", "The answer is not A. The answer is B.", "B", 1, False),
    "gpqa: because": ("gpqa", "The answer: because of D, it must be (C).", "C", 1, True),
    "gpqa: an article": ("gpqa", "The answer is a proton, so C", "C", 1, True),
    "gpqa: the last statement": ("gpqa", "The answer is A. Wait. The answer is B.", "B", 1, True),
    "gpqa: another option is rejected": ("gpqa", "The final answer is C. Option D is incorrect.", "D", 0, False),
    "gpqa: it cannot be": ("gpqa", "D. it can't be A or B", "D", 1, True),
    "gpqa: two letters": ("gpqa", "Either A or B.", "B", 0, True),
    "gpqa: corrected": ("gpqa", "Answer: D. Wait, no. It should be A.", "A", 1, True),
    "gpqa: unlike": ("gpqa", "The answer is B, unlike option D.", "B", 1, False),
    "gpqa: except": ("gpqa", "All options except B are wrong.", "B", 1, False),
    "gpqa: a small letter": ("gpqa", "(b)", "B", 1, False),
    "f1: 1.5 is not 15": ("f1", "1.5", "15", 0, True),
    "f1: an article": ("f1", "A", "A", 1, True),
    "f1: C++ is not C": ("f1", "C++", "C", 0, True),
    "f1: a solution of GSM8K": ("f1", "72", "24+48 = <<24+48=72>>72 clips\n#### 72", 1, True),
}


@pytest.fixture(scope="module")
def hub():
    need("pylatexenc", "slime")
    with importable(source("SLIME_SRC", "slime")):
        return importlib.import_module("slime.rollout.rm_hub")


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("case", HUB)
async def test_the_hub_beside_slimes(case, hub, capsys):
    rm_type, text, label, right, slime_errs = HUB[case]
    grade = await getattr(rewards, rm_type).grade(ModelOutput.of_turns([text], label=label))
    ours = getattr(grade, "value", grade)
    sample = SimpleNamespace(prompt="", response=text, label=label, metadata={}, custom_rm_path=None)
    theirs = await _slimes(hub.async_rm, SimpleNamespace(custom_rm_path=None, rm_type=rm_type), sample)
    show(capsys, case, right, ours, theirs)
    assert ours == pytest.approx(right)
    assert (theirs != pytest.approx(right)) == slime_errs


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", ["em", "math", "dapo", "gpqa", "search_r1_retrieval"])
async def test_slime_calls_ours_by_its_path(name, hub):
    """slime's own functions load the grader and call it: one sample, a batch, and a sample's own path."""
    path = f"agentrl.rewards.{name}"
    samples = [
        SimpleNamespace(
            prompt="",
            response=text,
            label="B",
            metadata={},
            custom_rm_path=None,
            loss_mask=None,
            group_index=0,
            index=0,
        )
        for text in ("<think>a</think> <answer>B</answer>", r"\boxed{B}", "Answer: B")
    ]
    args = SimpleNamespace(custom_rm_path=path, rm_type=None)
    one_by_one = [await hub.async_rm(args, sample) for sample in samples]
    assert await hub.batched_async_rm(args, samples) == one_by_one
    assert max(one_by_one) == 1.0
    samples[0].custom_rm_path, args.custom_rm_path = path, None
    assert await hub.async_rm(args, samples[0]) == one_by_one[0]


async def _slimes(async_rm: Callable[..., Any], args: Any, sample: Any) -> float:
    result = await asyncio.wait_for(async_rm(args, sample), 30)
    return float(result["score"] if isinstance(result, dict) else result)


def show(capsys: Any, case: str, right: float, ours: float, theirs: float) -> None:
    with capsys.disabled():
        mark = "" if theirs == right else "  slime differs"
        print(f"\n{case:40} right {right:4g}  ours {ours:4g}  slime {theirs:4g}{mark}", end="")
