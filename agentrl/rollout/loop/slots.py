"""Slots for episodes in flight: a fixed number, of which a part can be reserved for an evaluation."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Literal, TypeAlias

Use: TypeAlias = Literal["train", "eval"]


class EpisodeSlots:
    """Lets at most `total` episodes be in flight. Waiting episodes get slots in the order of their arrival.

    During `reserve`, an evaluation has the reserved slots. Training has the other slots, and the reserved slots that no
    evaluation episode waits for. Without a reservation, both may use all slots. An episode in flight never loses its
    slot: reserved slots become free as episodes end. Use the slots in a single event loop.
    """

    def __init__(self, total: int, on_free: Callable[[], None] = lambda: None) -> None:
        self.total, self.on_free = total, on_free
        """total: the number of slots. on_free: a function that is called when a training episode could begin and no
        training episode waits."""
        self.reserved = 0
        self._taken: Counter[Use] = Counter()
        self._waiting: dict[Use, deque[asyncio.Future[None]]] = {"train": deque(), "eval": deque()}

    def taken(self, use: Use) -> int:
        return self._taken[use]

    def free(self, use: Use) -> int:
        """The number of further episodes that could begin now, in addition to the waiting episodes."""
        return self.room(use) - sum(not waiter.done() for waiter in self._waiting[use])

    @asynccontextmanager
    async def one(self, use: Use = "train") -> AsyncIterator[None]:
        """Wait for a slot, and hold it."""
        await self._take(use)
        try:
            yield
        finally:
            self._taken[use] -= 1
            self._hand_out()

    @contextmanager
    def reserve(self, slots: int) -> Iterator[None]:
        """While the context is open, slots are reserved for evaluation. At least one slot stays for training, so a
        single slot is never reserved."""
        self.reserved = max(min(slots, self.total - 1), 0)
        self._hand_out()
        try:
            yield
        finally:
            self.reserved = 0
            self._hand_out()

    def room(self, use: Use) -> int:
        """The number of slots without an episode. Waiting episodes get these slots first."""
        most = self.total
        if self.reserved and use == "eval":
            most = self.reserved
        elif self.reserved and any(not waiter.done() for waiter in self._waiting["eval"]):
            most = self.total - self.reserved
        return min(most - self._taken[use], self.total - self._taken.total())

    async def _take(self, use: Use) -> None:
        if self.free(use) > 0:
            self._taken[use] += 1
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiting[use].append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():  # the episode got its slot in the same moment
                self._taken[use] -= 1
            elif waiter in self._waiting[use]:
                self._waiting[use].remove(waiter)
            self._hand_out()
            raise

    def _hand_out(self) -> None:
        for use in ("eval", "train") if self.reserved else ("train", "eval"):
            waiting = self._waiting[use]
            while waiting and self.room(use) > 0:
                waiter = waiting.popleft()
                if not waiter.done():
                    self._taken[use] += 1
                    waiter.set_result(None)
        if self.free("train") > 0:
            self.on_free()
