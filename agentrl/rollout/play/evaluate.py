"""Evaluation: a greedy episode of each task, and the metrics of these episodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from agentrl.episode.scoring import is_relative
from agentrl.monitor.metrics import RolloutMetrics
from agentrl.rollout.play.episodes import RewardSeen, Rollout
from agentrl.rollout.play.groups import run_groups
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import SamplingParams, Task


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The episodes of an evaluation, and their metrics."""

    metrics: RolloutMetrics
    trajectories: Sequence[Trajectory] = field(repr=False, compare=False)

    @classmethod
    def of(cls, trajectories: Sequence[Trajectory]) -> Evaluation:
        return cls(RolloutMetrics.of_groups([[trajectory] for trajectory in trajectories]), trajectories)


async def evaluate(
    rollout: Rollout,
    tasks: Sequence[Task],
    *,
    name: str = "eval",
    on_episode: Callable[[Trajectory], None] | None = None,
) -> Evaluation:
    """Play a greedy episode of each task, in order. Raises the errors of `run_groups`. Episodes without a reward are
    allowed.

    A relative reward has no group to compare with, so `Env.score` gives the rewards.
    """
    if is_relative(rollout.reward):
        rollout = replace(rollout, reward=None, scored=RewardSeen())
    greedy: SamplingParams = {"temperature": 0.0}
    groups = await run_groups(
        rollout, tasks, 1, sampling_params=greedy, name=name, on_episode=on_episode, keep_unscored=True
    )
    return Evaluation.of([group[0] for group in groups])
