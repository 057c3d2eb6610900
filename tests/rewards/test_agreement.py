"""Our graders on the test cases of slime's and of math-verify's, which are read from their source.

Each row that differs on purpose is listed here by what it is about, and in docs/rewards.md. Nothing else may differ.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from agentrl import rewards
from agentrl.rewards.answers import boxed
from agentrl.rewards.maths import Dapo, is_same
from agentrl.rewards.text import f1_of
from agentrl.trajectory.model_output import ModelOutput
from tests.rewards.others import calls_of, importable, load_file, need, rows, source

SLIME = {
    # test file, slime's grader: how ours is asked the same, and how many of its calls differ on purpose
    "f1_score": ("test_rm_f1.py", lambda args, kwargs: _f1(*args), 0),
    "compute_gpqa_reward": ("test_rm_gpqa.py", lambda args, kwargs: _gpqa(*args, **kwargs), 0),
    "get_deepscaler_rule_based_reward": ("test_rm_deepscaler.py", lambda args, kwargs: _ours("deepscaler", *args), 0),
    "grade_answer_verl": ("test_rm_math.py", lambda args, kwargs: _ours("math", *args), 0),
    "grade_answer_mathd": ("test_rm_math.py", lambda args, kwargs: _same(*args), 0),
    # A fraction that is not reduced equals the reduced one.
    "grade_answer_sympy": ("test_rm_math.py", lambda args, kwargs: _same(*args), 1),
    # The whole answer is read, not its last 300 characters.
    "compute_score": ("test_rm_math_dapo.py", lambda args, kwargs: _dapo(*args, **kwargs), 1),
    "is_correct_minerva": ("test_rm_math_dapo.py", lambda args, kwargs: _dapo(*args), 0),
}


async def _value(grader, text, label, **given) -> float:
    if text is None:
        return 0.0
    grade = await grader.grade(ModelOutput.of_turns([text], label=label, **given))
    return getattr(grade, "value", grade)


async def _ours(name: str, text: str, label: Any) -> float:
    return await _value(getattr(rewards, name), text, label)


async def _gpqa(text, label=None, metadata=None) -> float:
    return await _value(rewards.gpqa, text, label, metadata=metadata or {})


async def _f1(given, right) -> float:
    return 0.0 if given is None else f1_of(given, right)


async def _same(given, right) -> float:
    return float(await is_same(given, [right]))


async def _dapo(text, label, strict_box_verify=False) -> float:
    return await _value(Dapo(box=strict_box_verify), text, label)


def _number(result: Any) -> float:
    """slime's graders answer with a bool, a number, (f1, precision, recall), (right, text) or {"score": n}."""
    if isinstance(result, dict):
        return result["score"]
    return float(result[0] if isinstance(result, tuple) else result)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("grader", SLIME)
async def test_slimes_own_cases(grader, capsys):
    root = source("SLIME_SRC", "slime")
    need("pylatexenc", "slime")
    file, ask, on_purpose = SLIME[grader]
    with importable(root):
        noted = await asyncio.to_thread(calls_of, load_file(root / "tests" / file), grader)
    differ = []
    for args, kwargs, result in noted:
        ours, theirs = await ask(args, kwargs), _number(result)
        low = -1.0 if grader in ("compute_score", "is_correct_minerva") else 0.0
        theirs = low if theirs <= 0 else theirs
        if ours != pytest.approx(theirs):
            differ.append((args, kwargs, f"slime {theirs:g}, ours {ours:g}"))
    with capsys.disabled():
        print(f"\n{grader}: {len(noted) - len(differ)} of {len(noted)} calls agree", end="")
    assert noted
    assert len(differ) == on_purpose, differ


MATH_VERIFY = {
    # test file of math-verify's: how many of its rows differ on purpose
    "test_all.py": 12,  # a comma as the decimal point (3); chains of equations that are false (6); 3/3 is not computed;
    # a command that does not exist; an answer in the sentence after the box
    "test_boxed.py": 1,  # two boxes with something else between them: the last one counts
    "test_numina_cases.py": 1,  # intervals of z where |z| has a range
    "test_open_thoughts.py": 3,  # as in test_boxed.py
    "test_yujianll.py": 1,  # 1 + 1/e is not 1 - 1/e
}


@pytest.mark.parametrize("file", MATH_VERIFY)
async def test_math_verifys_own_cases(file, capsys):
    root = source("MATH_VERIFY_SRC", "math-verify")
    found = rows(root / "tests" / file)
    asked = [(gold, answer, same) for gold, answer, same in found if _is_answer(answer) and _is_answer(gold)]
    ours = await asyncio.gather(*[is_same(_read(answer), [_read(gold)]) for gold, answer, _ in asked])
    differ = [row for row, mine in zip(asked, ours, strict=True) if mine != row[2]]
    with capsys.disabled():
        print(
            f"\n{file}: {len(asked) - len(differ)} of {len(asked)} agree, {len(found) - len(asked)} sentences", end=""
        )
    assert asked
    assert len(differ) == MATH_VERIFY[file], differ


def _is_answer(text: str) -> bool:
    r"""Whether the text is an answer alone: in a box, or without a sentence around it. Ours reads no sentences."""
    words = re.findall(r"(?<![\\A-Za-z{])[A-Za-z]{3,}", text)
    return "\\boxed" in text or not words


def _read(text: str) -> str:
    return (boxed(text) or "") if "\\boxed" in text else text.strip()
