"""Draws the groups of a step. Groups without a learning signal are replaced by groups of fresh tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TypeAlias

from agentrl.errors import ConfigError
from agentrl.rollout.loop.buffer import GroupBuffer, PendingGroup
from agentrl.rollout.play.episodes import Rollout
from agentrl.rollout.play.groups import run_groups
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import JSON, SamplingParams

Group: TypeAlias = list[Trajectory]


@dataclass(frozen=True, slots=True)
class Drawn:
    """The groups of a step."""

    groups: list[Group]
    """The groups to learn from."""
    pending: list[PendingGroup] = field(default_factory=list)
    """The buffer's entries of the same groups, which wait to be trained."""
    replaced: list[Group] = field(default_factory=list)
    """The groups that were replaced, in the order of their play. The tokens of these groups are masked, with the reason
    `replaced`."""
    metrics: Mapping[str, JSON] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class GroupDrawer:
    """Takes groups from a buffer, plays the groups, and reports the results to the buffer.

    A group without a learning signal is replaced by a group of a fresh task, at most `refill` times in a step: DAPO's
    dynamic sampling (arXiv 2503.14476). Then the last replacement stays, so a step always has `groups` groups.

    The draw depends on the buffer's state, the seed and the step alone, so a step that is played again after a kill
    draws the same tasks and replaces the same groups.
    """

    rollout: Rollout
    buffer: GroupBuffer
    groups: int
    group_size: int
    seed: int
    sampling_params: SamplingParams
    teach: Callable[[Sequence[Group]], Sequence[bool]]
    """A function that tells for each group of a step whether the group teaches."""
    warn: Callable[[str], None]
    why: Callable[[Group], str] = lambda group: "replaced"
    """A function that returns the reason for dropping a group without a learning signal. The buffer counts the
    reasons."""
    refill: int = 0
    keep_unscored: bool = False
    _warned: bool = False

    async def draw(self, step: int) -> Drawn:
        """Play the groups of a step. Raises the errors of `run_groups`."""
        pending, groups = await self._play(step, self.groups, first=0)
        replaced, dropped = list[Group](), self.buffer.dropped.copy()
        idle = before = self._idle(groups)
        for _ in range(self.refill):
            if not idle:
                break
            taken, fresh = await self._play(step, len(idle), first=self.groups + len(replaced))
            for place, group, episodes in zip(idle, taken, fresh, strict=True):
                for trajectory in groups[place]:
                    trajectory.mask("replaced")
                replaced.append(groups[place])
                self.buffer.drop(pending[place], self.why(groups[place]))
                pending[place], groups[place] = group, episodes
            idle = self._idle(groups)
        if self.refill:
            self._watch(step, idle, len(replaced))
        shares = [1 - len(places) / self.groups for places in (before, idle)]
        metrics = {"teaching_share_drawn": shares[0], "teaching_share": shares[1], "replaced_groups": len(replaced)}
        metrics |= {f"dropped_{why}": count for why, count in (self.buffer.dropped - dropped).items()}
        return Drawn(groups, pending, replaced, {**metrics, **_by_seat(groups), **self.buffer.source.metrics()})

    async def stop(self) -> None:
        """Does nothing: no episode outlives its step."""

    def _watch(self, step: int, idle: Sequence[int], replaced: int) -> None:
        """Warn if fresh tasks do not teach either. The warning is repeated only after a step in which a group
        taught."""
        nothing = len(idle) == self.groups
        if nothing and not self._warned:
            self.warn(
                f"step {step}: in each of {self.groups + replaced} groups all episodes got the same reward, refill "
                f"({self.refill}) included; the tasks are too hard or too easy: give others, a warm start, or a larger "
                "group_size"
            )
        self._warned = nothing

    def _idle(self, groups: Sequence[Group]) -> list[int]:
        """The indices of the groups without a learning signal."""
        return [place for place, teaches in enumerate(self.teach(groups)) if not teaches]

    async def _play(self, step: int, count: int, *, first: int) -> tuple[list[PendingGroup], list[Group]]:
        pending = self._take(step, count)
        finished = {
            (place, index): member
            for place, group in enumerate(pending)
            for index, member in enumerate(group.members)
            if isinstance(member, Trajectory)
        }
        groups = await run_groups(
            self.rollout,
            [group.task for group in pending],
            self.group_size,
            sampling_params=self.sampling_params,
            seed=self.seed,
            step=step,
            first=first,
            keep_unscored=self.keep_unscored,
            finished=finished,
            keep=lambda trajectory, seat: self.buffer.keep(pending[seat[0]], seat[1], trajectory),
        )
        for group, trajectories in zip(pending, groups, strict=True):
            self.buffer.finished(group, trajectories)
        return pending, groups

    def _take(self, step: int, count: int) -> list[PendingGroup]:
        """Take `count` groups from the buffer. Raises ConfigError at the end of finite data."""
        taken = [group for group in (self.buffer.take(step - 1) for _ in range(count)) if group is not None]
        if len(taken) < count:
            raise ConfigError(f"step {step}: the data has ended; give more epochs, or fewer steps")
        return taken


def _by_seat(groups: Sequence[Group]) -> dict[str, JSON]:
    """A metric for each seat: the mean reward. Empty for an Env without seats."""
    seated = [trajectory for group in groups for trajectory in group if trajectory.seat and trajectory.is_valid]
    by_seat: dict[str, list[float]] = {}
    for trajectory in seated:
        by_seat.setdefault(trajectory.seat, []).append(trajectory.reward or 0.0)
    return {f"reward_{seat}": fmean(rewards) for seat, rewards in by_seat.items()}
