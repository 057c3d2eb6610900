"""The groups of a run, the rows of a step's updates, and the divisor of the loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agentrl._util.loading import load_object
from agentrl.rollout.data.source import TaskSource
from agentrl.rollout.loop.buffer import GroupBuffer
from agentrl.rollout.loop.drawing import GroupDrawer
from agentrl.rollout.loop.journal import Journal
from agentrl.rollout.play.episodes import Rollout
from agentrl.rollout.play.filters import NO_SPREAD, GroupFilter, OwnFilter, drop_reason
from agentrl.train.batch import Row, episode_rows
from agentrl.train.config import TrainConfig
from agentrl.train.credit import assign_advantages
from agentrl.train.teacher import Teacher
from agentrl.trajectory.trajectory import Trajectory, total_ledger


def buffer_of(config: TrainConfig, source: TaskSource, journal: Journal | None) -> GroupBuffer:
    """The buffer of a run's groups. Without `staleness` the buffer stores no episodes: a step that is played again
    gives the same episodes to the bit."""
    return GroupBuffer(source, config.group_size, journal=journal, keeps_episodes=config.staleness > 0)


def drawer_of(config: TrainConfig, rollout: Rollout, buffer: GroupBuffer, warn: Callable[[str], None]) -> GroupDrawer:
    """The object that draws the groups of each step."""
    filters = filters_of(config)
    return GroupDrawer(
        rollout=rollout,
        buffer=buffer,
        groups=config.prompts_per_step,
        group_size=config.group_size,
        seed=config.seed,
        sampling_params={"temperature": config.temperature},
        teach=lambda groups: teach(groups, config, filters),
        why=lambda group: drop_reason(filters, group) or NO_SPREAD,
        warn=warn,
        refill=config.refill,
        keep_unscored=not config.learns_from_rewards,
    )


def rows_to_learn(
    groups: Sequence[Sequence[Trajectory]], config: TrainConfig, teacher: Teacher | None = None
) -> tuple[list[Row], int]:
    """The rows to learn from, and the number of groups that teach nothing.

    Groups with equal rewards count in the mean of the loss, but only KL and a teacher give these groups a gradient.
    Without KL and without a teacher, such groups are not read.
    """
    advantages, differ = assign_advantages(groups, config.algorithm, config.credit, config.discount)
    teaching = differ if teacher is None else [any(map(_trained, group)) for group in groups]
    if teacher is not None:
        teacher.read([trajectory for group in groups for trajectory in group])
    rows: list[Row] = []
    for group, of_group, teaches in zip(groups, advantages, teaching, strict=True):
        if teaches or config.kl_coef > 0:
            for trajectory, of_turns in zip(group, of_group, strict=True):
                share = 1 / max(_trained(trajectory), 1) if config.reduction == "sample" else 1.0
                earned = of_turns if config.learns_from_rewards else [0.0] * len(of_turns)
                new_rows = episode_rows(trajectory, earned, share)
                rows += new_rows if teacher is None else teacher.teach(trajectory, new_rows)
    return rows, teaching.count(False)


def normaliser(trajectories: Sequence[Trajectory], config: TrainConfig, longest: float) -> float:
    """The divisor of the sum of a step's losses that gives the mean of `reduction`. `longest` is the number of tokens
    of the longest possible response."""
    if config.reduction == "token":
        return max(sum(map(_trained, trajectories)), 1)
    return len(trajectories) * (longest if config.reduction == "constant" else 1)


def teach(
    groups: Sequence[Sequence[Trajectory]], config: TrainConfig, filters: Sequence[GroupFilter] = ()
) -> list[bool]:
    """For each group, whether the group teaches anything. The rewards of the group must differ; with a teacher alone, a
    token must be trained. Groups that a filter drops teach nothing."""
    if config.learns_from_rewards:
        teaching = assign_advantages(groups, config.algorithm, config.credit, config.discount)[1]
    else:
        teaching = [any(map(_trained, group)) for group in groups]
    return [teaches and drop_reason(filters, group) is None for teaches, group in zip(teaching, groups, strict=True)]


def filters_of(config: TrainConfig) -> list[GroupFilter]:
    """The configured filters of groups. Raises ConfigError for a missing function."""
    return [OwnFilter(load_object(path), path.rpartition(":")[2]) for path in config.filters]


def _trained(trajectory: Trajectory) -> int:
    """The number of trained tokens of an episode in all of its segments."""
    return total_ledger(trajectory.segments).trained
