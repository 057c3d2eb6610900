"""The rollout loop: plays groups of episodes, ahead of a trainer (fully-async) or until a step is full (sync).

    source ──take──▶ playing ──▶ ready ──take──▶ the trainer
       ▲                │           │
       └──── put_back ──┴── stale ──┘

Several trainers use the same loop: each passes a source of groups, and a function that plays a group. The loop acts on
events: an episode or a group has ended, the trainer took groups, the weights changed. Only episodes that may never end
are polled. Fully-async is the rollout of AReaL (arXiv 2505.24298). In the sync mode, more groups than needed are
played, and the rest is aborted: this is slime's rollout, with the dynamic sampling of DAPO (arXiv 2503.14476).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence, Set
from contextlib import suppress
from functools import partial
from typing import Generic, Literal, Protocol, TypeAlias, TypeVar

from agentrl.errors import ConfigError
from agentrl.rollout.play.waiting import waiting_for

log = logging.getLogger("agentrl")

LOOK_S = 10.0
"""Seconds between two checks for groups that may never end."""

Stale: TypeAlias = Literal["drop", "retry", "mask"]
"""The treatment of a group whose weights are too old. drop: the group is dropped. retry: the group is played again from
the beginning, and dropped the second time. mask: the group is trained without the tokens that are too old."""


class LoopGroup(Protocol):
    """The attributes of a group that the loop needs. `PendingGroup` has these attributes."""

    @property
    def number(self) -> int: ...

    @property
    def born(self) -> int:
        """The version of the oldest weights that may have sampled a token of the group."""
        ...


G = TypeVar("G", bound=LoopGroup)


class GroupSource(Protocol[G]):
    """A source of groups, such as a buffer, which also takes back untrained groups, and counts dropped groups."""

    def take(self, version: int) -> G | None:
        """Take the next group, which will be played with weights of this version. Returns None at the end of the
        data."""
        ...

    def put_back(self, group: G, *, anew: bool) -> None:
        """Return an unfinished group. `anew`: the episodes of the group are discarded."""
        ...

    def drop(self, group: G, reason: str) -> None: ...


PlayGroup: TypeAlias = Callable[[G], Awaitable[str | None]]
"""A function that plays the missing episodes of a group. The function returns None if all episodes have ended, else a
reason. The reason `aborted` puts the group back; any other reason drops the group."""
ABORTED = "aborted"


class GroupLoop(Generic[G]):
    """Keeps groups in play, and holds the ended groups for the trainer.

    Fully-async: call `begin`, then `take` in each step, and `advance` after each change of the weights. Sync: call
    `collect`, then `abort`. `hungry` returns whether a group may begin; call `fill` when its result may have changed.
    The exception of a group ends all other groups, and is raised by the trainer's next call. Use the loop in a single
    event loop.
    """

    def __init__(
        self,
        source: GroupSource[G],
        play: PlayGroup[G],
        *,
        groups: int,
        staleness: int = 0,
        stale: Stale = "drop",
        hungry: Callable[[], bool] = lambda: True,
        late: Callable[[Sequence[G]], Set[int]] = lambda groups: frozenset(),
        drop_reason: Callable[[G], str | None] = lambda group: None,
        steps: int | None = None,
    ) -> None:
        """`groups` is the number of groups in a step. `late` returns the numbers of groups that may never end: while
        the trainer waits, further groups may begin in their place. `drop_reason` returns the reason to drop an ended
        group. No group begins for a step after `steps`."""
        self.source, self.groups, self.staleness, self.stale = source, groups, staleness, stale
        self._play, self._hungry, self._drop_reason, self.steps = play, hungry, drop_reason, steps
        self._late = late
        self.version = 0
        """The version of the weights that sample now."""
        self.step = 0
        """The last step whose groups the trainer took."""
        self.stopping = False
        """Whether the episodes must stop."""
        self._tasks: dict[int, tuple[G, asyncio.Task[str | None]]] = {}
        self._abandoned: set[asyncio.Task[str | None]] = set()
        """The tasks of dropped groups, until their episodes have ended."""
        self._ready: dict[int, G] = {}
        self._replaced: set[int] = set()
        """The numbers of late groups in play, which do not count towards the bounds."""
        self._retried: set[int] = set()
        """The numbers of groups that were too old once, and are played again."""
        self._running, self._most = False, 0
        self._failed: BaseException | None = None
        self._at_end = False
        """Whether the data has ended."""
        self._anew = False
        """Whether the episodes of aborted groups are discarded."""
        self._changed = asyncio.Event()

    @property
    def playing(self) -> int:
        return len(self._tasks)

    @property
    def ready(self) -> int:
        return len(self._ready)

    def fill(self) -> None:
        """Begin groups while `hungry` and the bound on staleness allow. No more groups begin than the trainer can take
        before their tokens are too old."""
        while self._running and not self._at_end and self._alive() < self._bound() and self._hungry():
            group = self.source.take(self.version)
            if group is None:
                self._at_end = True
                self._changed.set()
                return
            task = asyncio.create_task(self._started(group))
            self._tasks[group.number] = group, task
            task.add_done_callback(partial(self._ended, group))

    def begin(self, version: int, step: int) -> None:
        """Begin to play ahead of the trainer, with weights of this version. The trainer has learned from `step`
        steps."""
        self.version, self.step = max(self.version, version), max(self.step, step)
        if not self._running:
            self._running, self.stopping, self._at_end = True, False, False
        self.fill()

    def advance(self, version: int) -> None:
        """Record that the engine has weights of a new version."""
        self.version = version
        self.fill()

    async def take(self, step: int) -> list[G]:
        """Wait for the groups of a step: the groups with the oldest weights, in the order of their numbers.

        Raises the error that ended an episode, and ConfigError at the end of the data.
        """
        self.step = step - 1
        self.fill()
        with waiting_for(f"step {step}"):
            while True:
                self._check()
                if len(self._ready) >= self.groups:
                    break
                if self._at_end and not self._tasks:
                    raise ConfigError(f"step {step}: the data has ended; give more epochs, or fewer steps")
                if not await self._wait(LOOK_S):
                    self._replace_late()
        oldest = sorted(self._ready.values(), key=lambda group: (group.born, group.number))[: self.groups]
        for group in oldest:
            del self._ready[group.number]
            self._retried.discard(group.number)
        self.step = step
        self._drop_stale()
        self.fill()
        return sorted(oldest, key=lambda group: group.number)

    async def collect(self, version: int, at_once: int) -> list[G]:
        """A sync rollout: keep `at_once` groups in play until a step has its groups. Dropped groups are replaced. The
        returned groups are in the order of their numbers. Call `abort` to end the other groups.

        Raises the error that ended an episode, and ConfigError at the end of the data.
        """
        self.version, self.stopping = version, False
        self._running, self._at_end, self._most = True, False, at_once
        try:
            with waiting_for("the rollout"):
                while len(self._ready) < self.groups:
                    self._check()
                    self.fill()
                    if not self._tasks:
                        raise ConfigError("the data has ended before the step had its groups; give more epochs")
                    if not await self._wait(LOOK_S):
                        self._replace_late()
        finally:
            self._running, self._most = False, 0
        collected = sorted(self._ready.values(), key=lambda group: group.number)[: self.groups]
        for group in collected:
            del self._ready[group.number]
        return collected

    async def abort(self, cut: Callable[[], Awaitable[None]], *, partial_groups: bool = True) -> None:
        """Stop the episodes in flight, and wait for their end. `cut` is a function that ends the engine's requests.

        With `partial_groups`, complete groups stay ready, and other groups are put back with their episodes so far.
        Without `partial_groups`, all groups are put back, and their episodes are discarded.
        """
        self._running, self.stopping, self._anew = False, True, not partial_groups
        try:
            if self._tasks:
                await cut()
            await self._until_empty()
        finally:
            self.stopping = self._anew = False
        for group in [] if partial_groups else list(self._ready.values()):
            del self._ready[group.number]
            self.source.put_back(group, anew=True)
        self._check()

    def give_back(self) -> None:
        """Put the ready groups back, because no later call will take them."""
        for group in list(self._ready.values()):
            del self._ready[group.number]
            self.source.put_back(group, anew=False)

    async def stop(self) -> None:
        """Cancel the groups in play, put these groups back, and wait for their end. Safe to call twice."""
        self._running, self.stopping = False, True
        for _, task in list(self._tasks.values()):
            task.cancel()
        await self._until_empty()

    async def _until_empty(self) -> None:
        with waiting_for("the end of the rollout"):
            while tasks := [*(task for _, task in self._tasks.values()), *self._abandoned]:
                await asyncio.wait(tasks)
                await asyncio.sleep(0)  # their callbacks run now

    def _replace_late(self) -> None:
        """Begin further groups in place of groups that may never end. A late group that ends can still be taken by the
        trainer."""
        late = self._late([group for group, _ in self._tasks.values()]) - self._replaced
        if late:
            self._replaced |= late
            numbers = ", ".join(map(str, sorted(late)))
            log.warning("group %s takes many times as long as others: another may begin in its place", numbers)
            self.fill()

    def _bound(self) -> int:
        """The most groups that may be in play or ready."""
        if self._most:  # ready groups need no further groups
            return self._most
        last = self.version + self.staleness + 1
        return (last if self.steps is None else min(last, self.steps)) * self.groups - self.step * self.groups

    def _alive(self) -> int:
        """The number of groups that count towards the bound. Groups that are already too old, and stay for `mask`, do
        not count."""
        playing = [group for number, (group, _) in self._tasks.items() if number not in self._replaced]
        if self.stale != "mask" or self._most:
            return len(playing) + len(self._ready)
        groups = [*self._ready.values(), *playing]
        return sum(self.step - group.born <= self.staleness for group in groups)

    async def _started(self, group: G) -> str | None:
        return await self._play(group)

    def _ended(self, group: G, task: asyncio.Task[str | None]) -> None:
        """Called by the event loop when a group is not in play any more. Exceptions are stored, because the event loop
        would only log them."""
        exc = None if task.cancelled() else task.exception()
        if exc is not None:
            self._fail(exc)
        _, present = self._tasks.get(group.number, (group, None))
        try:
            if present is task:  # otherwise the group was dropped in play, and may be played again
                del self._tasks[group.number]
                self._replaced.discard(group.number)
                self._settle(group, ABORTED if task.cancelled() or exc is not None else task.result())
            self.fill()
        except Exception as raised:  # noqa: BLE001 - whatever the source or a filter raises, the trainer's call raises it
            self._fail(raised)
        self._changed.set()

    def _settle(self, group: G, reason: str | None) -> None:
        reason = self._drop_reason(group) if reason is None else reason
        if reason is None:
            self._ready[group.number] = group
            return
        if reason == ABORTED:
            self.source.put_back(group, anew=self._anew)
        else:
            self._retried.discard(group.number)
            self.source.drop(group, reason)

    def _fail(self, exc: BaseException) -> None:
        """Store the first exception, and cancel all groups."""
        self._failed, self._running, self.stopping = self._failed or exc, False, True
        for _, task in self._tasks.values():
            task.cancel()

    def _drop_stale(self) -> None:
        """Drop or put back the groups that will be too old in the next step, so that fresh groups can begin."""
        if self.stale == "mask" or (self.steps is not None and self.step >= self.steps):
            return
        for group in [*self._ready.values(), *(group for group, _ in self._tasks.values())]:
            if self.step - group.born > self.staleness:
                self._ready.pop(group.number, None)
                if (playing := self._tasks.pop(group.number, None)) is not None:
                    self._replaced.discard(group.number)
                    self._leave(playing[1])
                if self.stale == "retry" and group.number not in self._retried:
                    self._retried.add(group.number)
                    self.source.put_back(group, anew=True)
                else:
                    self._retried.discard(group.number)
                    self.source.drop(group, "stale")

    def _leave(self, task: asyncio.Task[str | None]) -> None:
        """Cancel the task of a dropped group, and keep a reference to the task until its end."""
        task.cancel()
        self._abandoned.add(task)
        task.add_done_callback(self._abandoned.discard)

    def _check(self) -> None:
        if self._failed is not None:
            failed, self._failed = self._failed, None
            raise failed

    async def _wait(self, timeout: float | None = None) -> bool:
        """Wait for a change. Returns False if no change comes within `timeout` seconds."""
        self._changed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                return await self._changed.wait()
        return False
