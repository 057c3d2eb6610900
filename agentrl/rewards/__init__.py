"""The reward hub: graders for `reward:` in agentrl's YAML and for slime's `--custom-rm-path`. See docs/rewards.md.

    reward: agentrl.rewards:em            --custom-rm-path agentrl.rewards.em

The module of a grader is imported when the grader is first used. No module here may have the name of a grader.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from agentrl.rewards.grader import Grader, grader
from agentrl.trajectory.model_output import ModelOutput

if TYPE_CHECKING:
    from agentrl.rewards.combine import group, in_process, per_turn, shaped, weighted
    from agentrl.rewards.instructions import IFBench
    from agentrl.rewards.judge import LLMJudge
    from agentrl.rewards.maths import Dapo
    from agentrl.rewards.relative import RelativeJudge
    from agentrl.rewards.remote import RemoteReward
    from agentrl.rewards.searching import SearchR1
    from agentrl_envs.coding.unit_tests import UnitTests

    boxed_dapo: Grader
    boxed_deepscaler: Grader
    boxed_em: Grader
    boxed_f1: Grader
    boxed_gpqa: Grader
    boxed_ifbench: Grader
    boxed_math: Grader
    boxed_remote_rm: Grader
    boxed_sub_em: Grader
    dapo: Grader
    deepscaler: Grader
    em: Grader
    f1: Grader
    gpqa: Grader
    ifbench: Grader
    math: Grader
    remote_rm: Grader
    search_r1: Grader
    search_r1_format: Grader
    search_r1_retrieval: Grader
    sub_em: Grader
    unit_tests: Grader

_READY: dict[str, tuple[str, str, dict[str, Any]]] = {
    "boxed_dapo": ("maths", "Dapo", {"box": True}),
    "boxed_deepscaler": ("maths", "Deepscaler", {}),
    "boxed_em": ("text", "Em", {"box": True}),
    "boxed_f1": ("text", "F1", {"box": True}),
    "boxed_gpqa": ("choice", "Gpqa", {"box": True}),
    "boxed_ifbench": ("instructions", "IFBench", {"box": True}),
    "boxed_math": ("maths", "Math", {}),
    "boxed_remote_rm": ("remote", "RemoteReward", {}),
    "boxed_sub_em": ("text", "SubEm", {"box": True}),
    "dapo": ("maths", "Dapo", {}),
    "deepscaler": ("maths", "Deepscaler", {}),
    "em": ("text", "Em", {}),
    "f1": ("text", "F1", {}),
    "gpqa": ("choice", "Gpqa", {}),
    "ifbench": ("instructions", "IFBench", {}),
    "math": ("maths", "Math", {}),
    "remote_rm": ("remote", "RemoteReward", {}),
    "search_r1": ("searching", "SearchR1", {}),
    "search_r1_format": ("searching", "SearchR1", {"structure": 0.2, "final": 0.1}),
    "search_r1_retrieval": ("searching", "SearchR1", {"structure": 0.2, "final": 0.1, "retrieval": 0.1}),
    "sub_em": ("text", "SubEm", {}),
    "unit_tests": ("agentrl_envs.coding.unit_tests", "UnitTests", {}),
}
r"""Name of a grader without settings -> (module, class, arguments). The prefix `boxed_` is slime's: such a reward reads
the last \boxed{}. `math` and `deepscaler` always read the box, and `remote_rm` sends the whole response."""

_MADE = {
    "Dapo": "maths",
    "IFBench": "instructions",
    "LLMJudge": "judge",
    "RelativeJudge": "relative",
    "RemoteReward": "remote",
    "SearchR1": "searching",
    "UnitTests": "agentrl_envs.coding.unit_tests",
    "group": "combine",
    "in_process": "combine",
    "per_turn": "combine",
    "shaped": "combine",
    "weighted": "combine",
}


def __getattr__(name: str) -> Any:
    if name in _READY:
        module, kind, settings = _READY[name]
        value = _find(module, kind)(**settings)
    elif name in _MADE:
        value = _find(_MADE[name], name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def _find(module: str, name: str) -> Any:
    return getattr(import_module(module if "." in module else f"agentrl.rewards.{module}"), name)


__all__ = [
    "Dapo",
    "Grader",
    "IFBench",
    "LLMJudge",
    "ModelOutput",
    "RelativeJudge",
    "RemoteReward",
    "SearchR1",
    "UnitTests",
    "boxed_dapo",
    "boxed_deepscaler",
    "boxed_em",
    "boxed_f1",
    "boxed_gpqa",
    "boxed_ifbench",
    "boxed_math",
    "boxed_remote_rm",
    "boxed_sub_em",
    "dapo",
    "deepscaler",
    "em",
    "f1",
    "gpqa",
    "grader",
    "group",
    "ifbench",
    "in_process",
    "math",
    "per_turn",
    "remote_rm",
    "search_r1",
    "search_r1_format",
    "search_r1_retrieval",
    "shaped",
    "sub_em",
    "unit_tests",
    "weighted",
]
