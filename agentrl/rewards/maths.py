"""Rewards for mathematics. A process with a deadline reads and compares the answer."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from agentrl.errors import ConfigError
from agentrl.rewards.answers import LONGEST, boxed, targets
from agentrl.rewards.grader import Grader
from agentrl.rewards.labels import check_label
from agentrl.rewards.workers import shared
from agentrl.trajectory.model_output import ModelOutput
from agentrl.types import JSON, Reward, Task

SECONDS = 10.0
_SAME = f"{Path(__file__).with_name('_maths')}/:same"
_INTEGER = re.compile(r"-?[0-9]{1,300}")
_STATED = re.compile(r"answer\s*:\s*([^\n]+)", re.IGNORECASE)


async def is_same(answer: str, labels: list[str], *, seconds: float = SECONDS) -> bool:
    """Whether a mathematical answer equals a label.

    Raises TimeoutError after `seconds`, InfraError if the process died, ConfigError without mpmath.
    """
    answer = answer.strip()
    if not answer or not labels or len(answer) > LONGEST:
        return False
    if answer in labels:
        return True
    if all(_INTEGER.fullmatch(text) for text in (answer, *labels)):
        return any(int(answer) == int(label) for label in labels)
    if importlib.util.find_spec("mpmath") is None:
        raise ConfigError("grading mathematics needs mpmath: pip install 'agentrl-sdk[rewards]'")
    return bool(await shared().run(_SAME, answer, labels, seconds=seconds))


def right_answers(label: JSON) -> list[str]:
    r"""The right answers of a label. Of a text with \boxed{}, the content of the box."""
    return [boxed(right) or "" if "\\boxed" in right else right for right in targets(label)]


class _MathGrader(Grader):
    def check_task(self, task: Task) -> None:
        check_label(task.label, right_answers, one_line=True)


class Math(_MathGrader):
    r"""The reward is 1 if the last \boxed{} of the answer equals the label, else 0."""

    async def grade(self, output: ModelOutput) -> float:
        answer = boxed(output.answer)
        return float(answer is not None and await is_same(answer, right_answers(output.label)))


class Deepscaler(Math):
    """The reward is as with Math, but 0 for an answer without a finished thought. "###Response" ends a thought, too."""

    async def grade(self, output: ModelOutput) -> float:
        if not (output.thought or "###Response" in output.answer):
            return 0.0
        return await super().grade(output)


class Dapo(_MathGrader):
    r"""The reward is 1 if the last line "Answer: ..." equals the label, else -1. `box`: the last \boxed{} is read
    instead."""

    def __init__(self, *, box: bool = False) -> None:
        self.box = box

    async def grade(self, output: ModelOutput) -> Reward:
        answer = boxed(output.answer) if self.box else stated(output.answer)
        right = answer is not None and await is_same(answer, right_answers(output.label))
        return Reward(1.0 if right else -1.0, {"acc": float(right)})


def stated(text: str) -> str | None:
    r"""The text after the last "Answer:", without $ and \boxed{}. None without such a text."""
    matches = _STATED.findall(text[-LONGEST:])
    if not matches:
        return None
    last = str(matches[-1]).strip()
    return (boxed(last) or "") if "\\boxed" in last else last.strip("*$ ").rstrip(".")
