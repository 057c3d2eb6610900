"""Whether an answer follows instructions, by the checkers of AllenAI's IFBench.

A grader's process loads this file as a script, so this file imports nothing of agentrl.
"""

from __future__ import annotations

from typing import Any

try:
    from ifbench.instructions_registry import INSTRUCTION_DICT
except ModuleNotFoundError:  # a clone on the path that is older than the package
    from instructions_registry import INSTRUCTION_DICT


def follows(answer: str, prompt: str, instructions: list[str], arguments: list[dict[str, Any]]) -> list[bool]:
    """For each instruction, whether the answer follows it. `instructions` are the names, `arguments` the arguments of
    each."""
    return [
        bool(answer.strip()) and _checker(name, values, prompt).check_following(answer)
        for name, values in zip(instructions, arguments, strict=True)
    ]


def _checker(name: str, arguments: dict[str, Any], prompt: str) -> Any:
    if name not in INSTRUCTION_DICT:
        raise ValueError(f"IFBench has no instruction {name!r}; correct instruction_id_list, or update IFBench")
    checker = INSTRUCTION_DICT[name](name)
    checker.build_description(**{key: value for key, value in arguments.items() if value is not None})
    if "prompt" in (checker.get_instruction_args() or {}):
        checker.build_description(prompt=prompt)
    return checker
