"""The drawn and untrained groups of a run. The buffer hands out each group for playing, takes the group back, and
records once that the group was trained or dropped.

    source ──take──▶ being played ──finished──▶ waits for the trainer ──trained──▶ gone
                        │  ▲                            │
                     put_back, take                    drop ──▶ gone, counted by reason
                        ▼  │
                       waiting

A group keeps its number from its first `take` to its end. `state` has the groups that are not gone, and the position in
the data. A checkpoint holds the state. After `restore` these groups are handed out first, and the position in the data
is that of the checkpoint: every task is trained once in the history of the restored checkpoint.

Use a buffer from a single thread.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from agentrl.rollout.data.source import TaskSource
from agentrl.rollout.loop.journal import Journal, Place, newest_weights, oldest_weights
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import JSON, Task

log = logging.getLogger("agentrl")

Member: TypeAlias = Trajectory | None
"""An episode of a group, or None for an episode that has not ended."""

Whereabouts: TypeAlias = Literal["playing", "waiting", "finished"]


@dataclass(slots=True, eq=False, kw_only=True)
class PendingGroup:
    """A group: a drawn task, with its episodes so far."""

    number: int
    """The number of the group in its run. The groups count from 0 in the order of their first `take`."""
    task: Task
    row: int
    epoch: int
    members: list[Member]
    """The episodes of earlier attempts to play the group; None for an episode to play. If all have ended, call
    `finished` at once."""
    attempts: int = 0
    """How many times the group was put back."""
    born: int = 0
    """The version of the oldest weights that may have sampled a token of the group. At each `take` without ended
    episodes, `born` becomes the version of that time."""

    @property
    def ended(self) -> bool:
        """Whether all episodes of the group have ended."""
        return all(isinstance(member, Trajectory) for member in self.members)


BufferFilter: TypeAlias = Callable[[Any, int | None, list[PendingGroup], int], Sequence[PendingGroup]]
"""A function with slime's signature `buffer_filter(args, rollout_id, buffer, num_samples)`. The function removes at
most `num_samples` waiting groups from the list `buffer`, and returns these groups."""


def pop_first(args: Any, rollout_id: int | None, buffer: list[Any], num_samples: int) -> list[Any]:
    """Take groups in the order of their return; slime's default."""
    taken = buffer[:num_samples]
    del buffer[:num_samples]
    return taken


class GroupBuffer:
    """Hands out groups of `group_size` episodes, and tracks whether each group is played, waiting or finished.

    `policy` chooses among the waiting groups, before a fresh task is drawn, and gets `args`. A group that the policy
    removes and does not return is dropped, with the reason `buffer_filter`. With a `journal`, ended episodes outlive
    the process. With `keeps_episodes=False` the journal only records the end of each group.

    Methods raise ValueError for a group that is not in the expected state, so that no group is trained twice.
    """

    def __init__(
        self,
        source: TaskSource,
        group_size: int,
        *,
        policy: BufferFilter = pop_first,
        args: Any = None,
        journal: Journal | None = None,
        keeps_episodes: bool = True,
    ) -> None:
        self.source, self.group_size = source, group_size
        self.dropped: Counter[str] = Counter()
        """Reason -> the number of groups that were dropped for this reason so far."""
        self.trained_groups = 0
        """The number of trained groups so far."""
        self._policy, self._args, self.journal = policy, args, journal
        self._keeps_episodes = keeps_episodes
        self._saved_episodes: dict[Place, dict[int, Trajectory]] = {}
        """Group -> member -> the journal's episode, for groups that may be drawn again."""
        self._next, self._step = 0, 0
        self.waiting: list[PendingGroup] = []
        """Groups that were put back, in the order of their return."""
        self._where: dict[int, Whereabouts] = {}
        self._groups: dict[int, PendingGroup] = {}
        """Number of a group -> the group, for all groups that are not gone."""

    def begin(self, journal: Journal) -> None:
        """Use this journal from the first group on. Earlier entries of the journal, which belong to an attempt without
        a checkpoint, are removed."""
        self.journal = journal
        journal.rewind(0, -1, ())

    def take(self, version: int = 0) -> PendingGroup | None:
        """Take the next group to play: a waiting group by the policy, else a fresh group. Returns None at the end of
        the data.

        `version` is the version of the weights that will sample.
        """
        group = self._take_waiting() or self._draw()
        if group is None:
            return None
        if all(member is None for member in group.members):
            group.born = version
        self._where[group.number] = "playing"
        self._note(group)
        return group

    def keep(self, group: PendingGroup, index: int, member: Trajectory) -> None:
        """Store an ended episode of a group in play, so that a restart need not play the episode again."""
        group.members += [None] * (index + 1 - len(group.members))  # with seats, an episode has several trajectories
        group.members[index] = member
        if self.journal is not None and self._keeps_episodes:
            self.journal.keep(_place(group), index, member, newest_weights(member, self._step))

    def finished(self, group: PendingGroup, trajectories: Sequence[Trajectory]) -> None:
        """Record that all episodes of the group have ended. The group then waits for the trainer."""
        self._move(group, "finished", "playing", "waiting")
        if group in self.waiting:
            self.waiting.remove(group)
        group.members = list(trajectories)
        self._keep_all(group)

    def put_back(self, group: PendingGroup, members: Sequence[Member] = ()) -> None:
        """Return a group that is unfinished, or must be played again. The group will be handed out again with these
        members. Members that are missing or None are played."""
        self._move(group, "waiting", "playing", "finished")
        group.members = [*members, *[None] * (self.group_size - len(members))]
        group.attempts += 1
        self.waiting.append(group)
        self._keep_all(group)

    def drop(self, group: PendingGroup, reason: str) -> None:
        """Remove a group that will not be trained. `reason` is a word or two, the key in `dropped`."""
        self._leave(group, "playing", "waiting", "finished")
        self.dropped[reason] += 1
        if self.journal is not None:
            self.journal.gone(_place(group), "dropped", self._step, reason)

    def trained(self, step: int, groups: Iterable[PendingGroup]) -> None:
        """Remove groups that the trainer has learned from. Call this method after the update and before `state`."""
        self._step = step
        for group in groups:
            self._leave(group, "finished")
            self.trained_groups += 1
            if self.journal is not None:
                self.journal.gone(_place(group), "trained", step)

    def saved(self, state: Mapping[str, Any]) -> None:
        """Record that a checkpoint with this state is complete. Episodes that only older checkpoints need are
        deleted."""
        if self.journal is not None:
            self.journal.saved(state["step"])

    def depths(self) -> dict[str, JSON]:
        """The numbers of groups that are being played, wait to be played again, and have finished and wait for the
        trainer."""
        counts = Counter(self._where.values())
        return {where: counts[where] for where in ("playing", "waiting", "finished")}

    def state(self) -> dict[str, JSON]:
        """A copy of the state as plain JSON: all groups that are not gone, without their episodes, and the position in
        the data."""
        return {
            "next": self._next,
            "step": self._step,
            "trained": self.trained_groups,
            "dropped": dict(self.dropped),
            "groups": [[g.number, g.row, g.epoch, g.attempts, g.born] for g in self._in_order()],
            "source": dict(self.source.state_dict()),
            "journal": self.journal.id if self.journal is not None else None,
        }

    def restore(self, state: Mapping[str, Any], *, accept_changes: bool = False) -> None:
        """Return to `state`. The groups of the state are handed out first.

        Raises ConfigError for changed data, unless `accept_changes` is set. With `accept_changes`, the journal's
        episodes are played again, since their tasks may differ.
        """
        self.source.load_state_dict(state["source"], accept_changes=accept_changes)
        self._next, self._step, self.trained_groups = state["next"], state["step"], state["trained"]
        self.dropped = Counter(state["dropped"])
        self.waiting = list(self._restored(state["groups"]))
        self._groups = {group.number: group for group in self.waiting}
        self._where = dict.fromkeys(self._groups, "waiting")
        self._find_episodes(None if accept_changes else state.get("journal"))

    def _restored(self, groups: Iterable[Sequence[int]]) -> Iterator[PendingGroup]:
        for number, row, epoch, attempts, born in groups:
            try:
                task = self.source.task(row)
            except IndexError:  # the data has fewer rows now, and the change was accepted
                self.dropped["row_is_gone"] += 1
                continue
            members: list[Member] = [None] * self.group_size
            yield PendingGroup(
                number=number, task=task, row=row, epoch=epoch, members=members, attempts=attempts, born=born
            )

    def _find_episodes(self, journal: str | None) -> None:
        """Rewind the journal. If the checkpoint was written with this journal (`journal` is its id), give the groups
        their episodes."""
        if self.journal is None:
            return
        if journal not in (None, self.journal.id):
            log.warning("%s is not the checkpoint's: what it holds of the run is not used", self.journal.path)
        usable = journal == self.journal.id
        places = [(_place(group), group.attempts) for group in self.waiting]
        self._saved_episodes = self.journal.rewind(self._next, self._step if usable else -1, places)
        for group in self.waiting:
            self._give_found(group)

    def _give_found(self, group: PendingGroup) -> None:
        if members := self._saved_episodes.pop(_place(group), None):
            group.members = [members.get(index) for index in range(max(self.group_size, max(members, default=-1) + 1))]
            group.born = oldest_weights(group.members, self._step)

    def _keep_all(self, group: PendingGroup) -> None:
        """Write the group and its episodes to the journal, and delete the episodes to play again."""
        for index, member in enumerate(group.members):
            if member is not None:
                self.keep(group, index, member)
            elif self.journal is not None:
                self.journal.forget(_place(group), index)
        self._note(group)

    def _note(self, group: PendingGroup) -> None:
        if self.journal is not None:
            self.journal.note(_place(group), self._where[group.number])

    def _take_waiting(self) -> PendingGroup | None:
        if not self.waiting:
            return None
        before = list(self.waiting)
        taken = list(self._policy(self._args, self._step, self.waiting, 1))
        remaining = {group.number for group in (*self.waiting, *taken)}
        for group in before:
            if group.number not in remaining:
                self.drop(group, "buffer_filter")
        self.waiting[:0] = taken[1:]
        return taken[0] if taken else None

    def _draw(self) -> PendingGroup | None:
        drawn = self.source.draw()
        if drawn is None:
            return None
        group = PendingGroup(
            number=self._next,
            task=drawn.task,
            row=drawn.row,
            epoch=drawn.epoch,
            members=[None] * self.group_size,
        )
        self._next += 1
        self._groups[group.number] = group
        self._give_found(group)
        return group

    def _in_order(self) -> list[PendingGroup]:
        """Groups in play and finished groups in the order of their numbers, then the groups that were put back."""
        waiting = {group.number for group in self.waiting}
        return [*(group for number, group in sorted(self._groups.items()) if number not in waiting), *self.waiting]

    def _move(self, group: PendingGroup, to: Whereabouts, *come_from: Whereabouts) -> None:
        where = self._where.get(group.number)
        if self._groups.get(group.number) is not group or where not in come_from:
            raise ValueError(f"group {group.number} is {where or 'gone'}, not {' or '.join(come_from)}")
        self._where[group.number] = to

    def _leave(self, group: PendingGroup, *come_from: Whereabouts) -> None:
        self._move(group, come_from[0], *come_from)
        del self._where[group.number], self._groups[group.number]
        if group in self.waiting:
            self.waiting.remove(group)


def _place(group: PendingGroup) -> Place:
    return group.number, group.row, group.epoch
