"""Coding tasks in sandboxes: an agent works in a sandbox, and a second sandbox grades the work.

python -m agentrl_envs.coding.formats.functions tasks.jsonl      # HumanEval
agentrl play agentrl_envs.coding:CodingEnv --player agentrl_envs.coding:gold --data tasks.jsonl
"""

from __future__ import annotations

from agentrl_envs.coding.env import CodingConfig, CodingEnv
from agentrl_envs.coding.players import gold, noop
from agentrl_envs.coding.problem import ApartGrader, Files, Grade, Problem, Solution, Step, TaskGrader, load_problem

__all__ = [
    "ApartGrader",
    "CodingConfig",
    "CodingEnv",
    "Files",
    "Grade",
    "Problem",
    "Solution",
    "Step",
    "TaskGrader",
    "gold",
    "load_problem",
    "noop",
]
