"""Rollouts: where tasks come from, groups of episodes, and evaluation."""

from __future__ import annotations

from agentrl.monitor.canaries import Canaries, CanaryConfig
from agentrl.rollout.branching import Budget, EpisodeTree
from agentrl.rollout.evaluate import Evaluation, evaluate
from agentrl.rollout.groups import BugError, Rollout, run_groups
from agentrl.rollout.stream import TaskStream
from agentrl.rollout.tasks import load_tasks, tasks_of

__all__ = [
    "Budget",
    "BugError",
    "Canaries",
    "CanaryConfig",
    "EpisodeTree",
    "Evaluation",
    "Rollout",
    "TaskStream",
    "evaluate",
    "load_tasks",
    "run_groups",
    "tasks_of",
]
