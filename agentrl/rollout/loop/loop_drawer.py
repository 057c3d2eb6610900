"""Draws the groups of each step from a rollout loop that plays ahead of the trainer. GroupDrawer plays groups in turn
with the updates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from agentrl.rollout.loop.buffer import GroupBuffer, PendingGroup
from agentrl.rollout.loop.drawing import Drawn, Group
from agentrl.rollout.loop.group_loop import GroupLoop, Stale
from agentrl.rollout.loop.player import GroupPlayer, group_ages
from agentrl.rollout.loop.slots import EpisodeSlots
from agentrl.rollout.play.episodes import Rollout
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSettings:
    """The settings of a loop that plays groups for a trainer."""

    groups: int
    """The number of groups in a step."""
    seed: int = 0
    sampling_params: SamplingParams = field(default_factory=SamplingParams)
    teach: Callable[[Sequence[Group]], Sequence[bool]] | None = None
    """A function that tells for each group whether the group teaches. None: all groups teach."""
    why: Callable[[Group], str] = lambda group: "replaced"
    """A function that returns the reason for dropping a group without a learning signal. The buffer counts the
    reasons."""
    refill: int = 0
    """How many times in a step groups without a learning signal may be replaced."""
    staleness: int = 0
    stale: Stale = "drop"
    steps: int | None = None
    """The number of the run's last step."""
    keep_unscored: bool = False


class LoopDrawer:
    """Plays groups of a buffer in a loop, as far ahead as `staleness` allows, and hands each step its groups."""

    def __init__(self, rollout: Rollout, buffer: GroupBuffer, settings: LoopSettings) -> None:
        self.settings, self.buffer = settings, buffer
        self.slots = EpisodeSlots(rollout.concurrency)
        self.player = GroupPlayer(
            rollout=rollout,
            buffer=buffer,
            slots=self.slots,
            seed=settings.seed,
            sampling_params=settings.sampling_params,
            aborted=lambda: self.loop.stopping,
            keep_unscored=settings.keep_unscored,
        )
        self.loop: GroupLoop[PendingGroup] = GroupLoop(
            self.player,
            self.player.play,
            groups=settings.groups,
            staleness=settings.staleness,
            stale=settings.stale,
            hungry=self.player.hungry,
            late=self.player.late,
            drop_reason=self._unwanted,
            steps=settings.steps,
        )
        self.slots.on_free = self.loop.fill
        self.evaluating = replace(rollout, slot=lambda: self.slots.one("eval"))
        """The rollout for evaluations, whose episodes use the slots for evaluation."""
        self._replaced: list[Group] = []
        self._dropped: Counter[str] | None = None
        """The counts of dropped groups at the last report. None before the first group, because a checkpoint may still
        be restored."""

    def begin(self, version: int, step: int) -> None:
        """Begin to play ahead of the trainer, with weights of this version. `step` steps are done."""
        self._drops_so_far()
        self.loop.begin(version, step)

    async def draw(self, step: int) -> Drawn:
        """Wait for the groups of a step. Call `begin` first. Raises the errors of `run_groups`."""
        before = self._drops_so_far()
        pending = await self.loop.take(step)
        groups = [[member for member in group.members if isinstance(member, Trajectory)] for group in pending]
        self._dropped = self.buffer.dropped.copy()
        metrics = self.player.flow.report(
            groups,
            group_ages=group_ages(pending, step),
            queues={"playing": self.loop.playing, "ready": self.loop.ready},
        )
        replaced, self._replaced = self._replaced, []
        metrics["replaced_groups"] = len(replaced)
        metrics |= {f"dropped_{why}": count for why, count in (self._dropped - before).items()}
        return Drawn(groups, pending, replaced, {**metrics, **self.buffer.source.metrics()})

    def _drops_so_far(self) -> Counter[str]:
        if self._dropped is None:
            self._dropped = self.buffer.dropped.copy()
        return self._dropped

    async def stop(self) -> None:
        """Cancel all episodes. Groups that have ended stay ready."""
        await self.loop.stop()

    def _unwanted(self, group: PendingGroup) -> str | None:
        settings = self.settings
        if settings.teach is None or len(self._replaced) >= settings.refill * settings.groups:
            return None
        members = [member for member in group.members if isinstance(member, Trajectory)]
        if settings.teach([members])[0]:
            return None
        for trajectory in members:
            trajectory.mask("replaced")
        self._replaced.append(members)
        return settings.why(members)
