"""Draws the groups of a step, and replaces those that teach nothing by groups of fresh tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from agentrl.rollout.groups import Rollout, run_groups
from agentrl.rollout.pass_rates import pass_rate
from agentrl.rollout.tasks import TaskStream
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import JSON, SamplingParams

Group: TypeAlias = list[Trajectory]


@dataclass(frozen=True, slots=True)
class Drawn:
    """The groups of one step."""

    groups: list[Group]
    """Those to learn from."""
    replaced: list[Group] = field(default_factory=list)
    """Those whose place another group took, in the order of their play. Their tokens are masked as `replaced`."""
    metrics: Mapping[str, JSON] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class GroupDrawer:
    """Draws tasks from a stream, plays them, and tells the stream how they went.

    `refill` is how often in a step the groups that teach nothing are replaced by groups of fresh tasks: DAPO's dynamic
    sampling (arXiv 2503.14476), with a bound. A step always has `groups` groups. At the bound, the last one played in
    each place stays.

    Everything depends on the stream's state, the seed and the step alone, so a step that is played again after a kill
    draws the same tasks and replaces the same groups.
    """

    rollout: Rollout
    stream: TaskStream
    groups: int
    group_size: int
    seed: int
    sampling_params: SamplingParams
    teach: Callable[[Sequence[Group]], Sequence[bool]]
    """For each group of a step, whether there is anything to learn from it."""
    warn: Callable[[str], None]
    refill: int = 0
    keep_unscored: bool = False
    _warned: bool = False

    async def draw(self, step: int) -> Drawn:
        """The groups of a step. Raises as `run_groups` does."""
        kept = await self._play(step, self.groups, first=0)
        replaced: list[Group] = []
        idle = before = self._idle(kept)
        for _ in range(self.refill):
            if not idle:
                break
            fresh = await self._play(step, len(idle), first=self.groups + len(replaced))
            for place, group in zip(idle, fresh, strict=True):
                for trajectory in kept[place]:
                    trajectory.mask("replaced")
                replaced.append(kept[place])
                kept[place] = group
            idle = self._idle(kept)
        if self.refill:
            self._watch(step, idle, len(replaced))
        shares = [1 - len(places) / self.groups for places in (before, idle)]
        metrics = {"teaching_share_drawn": shares[0], "teaching_share": shares[1], "replaced_groups": len(replaced)}
        return Drawn(kept, replaced, {**metrics, **self.stream.metrics()})

    def _watch(self, step: int, idle: Sequence[int], replaced: int) -> None:
        """Warn if even fresh tasks teach nothing: once, and again after a step that taught."""
        nothing = len(idle) == self.groups
        if nothing and not self._warned:
            self.warn(
                f"step {step}: in each of {self.groups + replaced} groups all episodes got the same reward, refill "
                f"({self.refill}) included; the tasks are too hard or too easy: give others, a warm start, or a larger "
                "group_size"
            )
        self._warned = nothing

    def _idle(self, groups: Sequence[Group]) -> list[int]:
        """The places of the groups that teach nothing."""
        return [place for place, teaches in enumerate(self.teach(groups)) if not teaches]

    async def _play(self, step: int, count: int, *, first: int) -> list[Group]:
        tasks = self.stream.take(count)
        groups = await run_groups(
            self.rollout,
            tasks,
            self.group_size,
            sampling_params=self.sampling_params,
            seed=self.seed,
            step=step,
            first=first,
            keep_unscored=self.keep_unscored,
        )
        for task, group in zip(tasks, groups, strict=True):
            if (rate := pass_rate(group)) is not None:
                self.stream.record(task, rate)
        return groups
