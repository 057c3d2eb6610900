"""Rollouts: the sources of tasks, groups of episodes, and evaluation."""

from __future__ import annotations

from agentrl.errors import BugError
from agentrl.monitor.canaries import Canaries, CanaryConfig
from agentrl.rollout.data.stream import TaskStream
from agentrl.rollout.data.tasks import load_tasks, tasks_of
from agentrl.rollout.play.branching import Budget, EpisodeTree
from agentrl.rollout.play.episodes import Rollout
from agentrl.rollout.play.evaluate import Evaluation, evaluate
from agentrl.rollout.play.groups import run_groups

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
