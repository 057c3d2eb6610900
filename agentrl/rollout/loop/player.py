"""Plays the groups of a buffer for a rollout loop, each episode in a slot."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from agentrl._util.concurrency import gather
from agentrl._util.seeds import sampling_seed
from agentrl.chat.engine_speaker import EngineSpeaker
from agentrl.episode.gate import admission
from agentrl.episode.options import EpisodeHooks
from agentrl.rollout.loop.buffer import GroupBuffer, PendingGroup
from agentrl.rollout.loop.flow import Flow
from agentrl.rollout.loop.group_loop import ABORTED
from agentrl.rollout.loop.slots import EpisodeSlots
from agentrl.rollout.play.episodes import Rollout, play_episode
from agentrl.rollout.play.failures import too_few
from agentrl.rollout.play.groups import GroupReward, refuse_unscored, score_group, settle_rewards
from agentrl.rollout.play.in_flight import flying, late, note_turn
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import SamplingParams, StopReason


@dataclass(slots=True, kw_only=True)
class GroupPlayer:
    """The source of a GroupLoop's groups, and the player of their episodes. The episodes belong to a `Rollout`, and
    each needs a slot.

    A group begins when a slot is free and no episode waits for a slot, so `slots.total` episodes are in flight at any
    time. The sampling seed of an episode depends on (seed, group, member) alone. So a group gets the same tokens beside
    any other groups, if the engine's results depend on nothing else.
    """

    rollout: Rollout
    buffer: GroupBuffer
    slots: EpisodeSlots
    seed: int
    sampling_params: SamplingParams
    aborted: Callable[[], bool] = lambda: False
    """A function that tells whether the episodes must stop. They restart when their group is taken again."""
    keep_unscored: bool = False
    name: str = "train"
    flow: Flow = field(default_factory=Flow)
    _waiting_for_slot: dict[int, int] = field(default_factory=dict)
    """Group in play -> the number of the group's episodes that wait for a slot."""

    # The source

    def hungry(self) -> bool:
        """Whether a group may begin: a slot is free, and no episode waits for a slot."""
        return self.slots.room("train") > sum(self._waiting_for_slot.values())

    def take(self, version: int) -> PendingGroup | None:
        group = self.buffer.take(version)
        if group is not None:
            self._waiting_for_slot[group.number] = sum(not isinstance(member, Trajectory) for member in group.members)
        return group

    def late(self, groups: Sequence[PendingGroup]) -> Set[int]:
        """The numbers of the groups with an episode that is in flight for several times the median time."""
        names = {flight.name.rpartition("-")[0] for flight in late(self.name)}
        return {group.number for group in groups if f"{self.name}-{group.number:06d}" in names}

    def put_back(self, group: PendingGroup, *, anew: bool) -> None:
        self._waiting_for_slot.pop(group.number, None)
        self.buffer.put_back(group, () if anew else list(group.members))

    def drop(self, group: PendingGroup, reason: str) -> None:
        self._waiting_for_slot.pop(group.number, None)
        self.buffer.drop(group, reason)

    # The play

    async def play(self, group: PendingGroup) -> str | None:
        """Play the missing episodes of a group; see `PlayGroup`. Raises the errors of `run_groups`."""
        missing = [i for i, member in enumerate(group.members) if not isinstance(member, Trajectory)]
        await gather([self._play_member(group, index) for index in missing])
        self._waiting_for_slot.pop(group.number, None)
        ended = [member for member in group.members if isinstance(member, Trajectory)]
        if len(ended) < len(group.members):
            return ABORTED
        if too_few(self.rollout.failures, ended):
            return "env_failure"
        with flying(f"{self.name}-{group.number:06d}-score", group.task.id, self.name, episode=False):
            await self._score(ended)
        self.buffer.finished(group, ended)
        return None

    async def _score(self, group: Sequence[Trajectory]) -> None:
        rollout = self.rollout
        if isinstance(rollout.reward, GroupReward):
            await score_group(rollout.reward, group, EngineSpeaker(rollout.engine, rollout.renderer))
        unscored = settle_rewards(rollout.envs, rollout.scored, group)
        if unscored and not self.keep_unscored:
            refuse_unscored(rollout.envs, unscored[0].task)

    async def _play_member(self, group: PendingGroup, index: int) -> None:
        async with self.slots.one():
            if group.number in self._waiting_for_slot:
                self._waiting_for_slot[group.number] -= 1
            if self.aborted():
                return
            await admission()  # thousands of simultaneous beginnings must not block the loop
            session_id = f"{self.name}-{group.number:06d}-{index:03d}"
            with flying(session_id, group.task.id, self.name), self.flow.episode(session_id):
                await self._play_episode(group, index, session_id)

    async def _play_episode(self, group: PendingGroup, index: int, session_id: str) -> None:
        params: SamplingParams = {
            **self.rollout.options.sampling_params,
            **self.sampling_params,
            "sampling_seed": sampling_seed(self.name, self.seed, group.number, index),
        }
        hooks = EpisodeHooks(aborted=self.aborted, on_turn=note_turn)
        trajectory = await play_episode(self.rollout, group.task, params, session_id, hooks=hooks)
        if trajectory.stop is not StopReason.ABORTED:
            self.buffer.keep(group, index, trajectory)


def group_ages(groups: Sequence[PendingGroup], step: int) -> Mapping[int, int]:
    """Age -> the number of groups of this age. The age of a group is the number of updates between the weights at its
    beginning and this step."""
    ages: dict[int, int] = {}
    for group in groups:
        age = max(step - 1 - group.born, 0)
        ages[age] = ages.get(age, 0) + 1
    return dict(sorted(ages.items()))
