"""Rewards for instructions that a program can check, by AllenAI's IFBench, in a process with a deadline."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentrl._util.texts import texts_in
from agentrl.errors import ConfigError
from agentrl.rewards.answers import LONGEST, boxed
from agentrl.rewards.grader import Grader
from agentrl.rewards.workers import shared
from agentrl.trajectory.model_output import ModelOutput
from agentrl.types import JSON, Reward, Task

_SECONDS = 30.0
_FOLLOWS = f"{Path(__file__).with_name('_instructions.py')}:follows"


class IFBench(Grader):
    r"""The reward is 1 if the answer follows all instructions, else 0. The part `followed` is the share of followed
    instructions.

    The task's metadata hold `instruction_id_list`, `kwargs` (the arguments of each instruction, or common arguments)
    and `prompt_text` (by default the prompt), as in slime's reward `ifbench`. The names of instructions are the names
    of IFBench (arXiv 2507.02833) and, in newer versions, of IFEval. `box`: the content of the last \boxed{} is the
    answer.

    Raises ConfigError without the library or the metadata, TimeoutError after 30 s, InfraError if the process died.
    """

    def __init__(self, *, box: bool = False) -> None:
        self.box = box

    async def grade(self, output: ModelOutput) -> Reward:
        names, arguments = _instructions(output.metadata)
        _require_library()
        answer = (boxed(output.answer) or "") if self.box else output.answer
        if not answer or len(answer) > LONGEST:
            return Reward(0.0, {"followed": 0.0})
        prompt = output.metadata.get("prompt_text")
        question = _text(output.prompt) if prompt is None else str(prompt)
        follows = list(await shared().run(_FOLLOWS, answer, question, names, arguments, seconds=_SECONDS))
        return Reward(float(all(follows)), {"followed": sum(follows) / len(follows)})

    def check_task(self, task: Task) -> None:
        _instructions(task.metadata)
        _require_library()


def _require_library() -> None:
    if not any(importlib.util.find_spec(name) for name in ("ifbench", "instructions_registry")):
        raise ConfigError("ifbench needs AllenAI's library: pip install git+https://github.com/allenai/IFBench")


def _instructions(metadata: Mapping[str, JSON]) -> tuple[list[str], list[dict[str, Any]]]:
    """The names of the instructions, and the arguments of each. Raises ConfigError."""
    names = metadata.get("instruction_id_list")
    if not isinstance(names, list | tuple) or not names or not all(isinstance(name, str) for name in names):
        raise ConfigError(
            f"ifbench reads metadata.instruction_id_list, which is {names!r:.80}; give a list of IFBench's names, such "
            'as ["count:word_count_range"]'
        )
    arguments: Any = metadata.get("kwargs") or {}
    arguments = [arguments] * len(names) if isinstance(arguments, Mapping) else arguments
    if not isinstance(arguments, list | tuple) or len(arguments) != len(names):
        raise ConfigError(
            f"ifbench reads metadata.kwargs, which is {arguments!r:.80}; give one object for each of the {len(names)} "
            "instructions, or one for all"
        )
    return list(names), [dict(values or {}) for values in arguments]


def _text(prompt: JSON) -> str:
    """The prompt as text. For messages, the text of the last user message."""
    if isinstance(prompt, str):
        return prompt
    users = [message for message in prompt or () if isinstance(message, Mapping) and message.get("role") == "user"]
    return "".join(texts_in(users[-1].get("content"))) if users else ""
