"""Waves: batches whose composition does not depend on timing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from agentrl.engine.base import Generation

log = logging.getLogger(__name__)

QUIET_S = 5.0
"""How long a wave waits for episodes that have not asked yet, after the last one that came or left."""
STUCK_S = 60.0
"""How long a wave waits for episodes that have asked before."""


@dataclass(slots=True, eq=False)
class Seat:
    """One episode in lockstep."""

    joined: bool = False
    """It has asked the engine, and is waited for."""
    asked: Future[Generation] | None = None
    """The answer to its last request."""

    @property
    def asking(self) -> bool:
        return self.asked is not None and not self.asked.done()


_seat: ContextVar[Seat | None] = ContextVar("agentrl_lockstep_seat", default=None)


class Lockstep:
    """A fixed number of episodes that take their turns together; made by `LocalEngine.lockstep`.

    Floating-point results of a row depend, in the last bits, on the rows that it is computed with, and these on which
    request came first. In lockstep a batch starts only when each episode that has not left is waiting for its turn, and
    its rows are in the order of their content. Same weights, same prompts, same seeds: then same tokens and
    bit-identical log-probs, whatever the timing.

    Episodes may wait for each other, as those of a pool with fewer boxes than episodes do: whoever has no box cannot
    ask, and whoever has one keeps it while it waits. So an episode counts from its first request on. The first wave is
    begun when nobody has come for `QUIET_S`; later, each episode that leaves lets one more in, and that one is waited
    for as long. An episode that has asked before, and is not back after `STUCK_S`, counts again when it is. All this is
    bit-reproducible too, if resets take less than `QUIET_S`, steps less than `STUCK_S`, and boxes are given out in the
    order in which episodes came.
    """

    def __init__(self, episodes: int, changed: Callable[[Callable[[], None]], None]) -> None:
        self._episodes, self._entered, self._left = episodes, 0, 0
        self._joined: set[Seat] = set()
        self._expected = episodes
        """Episodes that have not asked, and are waited for all the same."""
        self._changed = changed

    @property
    def alive(self) -> int:
        """Episodes that have not left, those not yet begun included."""
        return self._episodes - self._left

    @contextmanager
    def episode(self) -> Iterator[None]:
        """Everything one episode asks of the engine happens in here; however it ends, nobody waits for it any more.

        Raises ValueError when more than the promised number enter.
        """
        if self._entered == self._episodes:
            raise ValueError(f"lockstep was promised {self._episodes} episodes, and one more has begun")
        self._entered += 1
        seat = Seat()
        token = _seat.set(seat)
        try:
            yield
        finally:
            _seat.reset(token)
            self._changed(lambda: self._leave(seat, for_good=True))

    def begin_again(self) -> None:
        """The episode whose task calls this begins anew: it counts from its next request on."""
        if (seat := _seat.get()) is not None:
            self._changed(lambda: self._leave(seat, for_good=False))

    # For the worker, which holds its lock

    def ask(self, answer: Future[Generation]) -> None:
        """A request has come, made by the task that calls this."""
        if (seat := _seat.get()) is None:
            return
        seat.asked = answer
        if not seat.joined:
            seat.joined = True
            self._joined.add(seat)
            self._expected = max(0, self._expected - 1)

    def is_complete(self, waiting: int) -> bool:
        """So many requests are all that this wave is to have."""
        return waiting >= len(self._joined) + self._expected

    def patience(self, waiting: int) -> float:
        """Seconds without any news after which the wave begins as it is."""
        return QUIET_S if waiting >= len(self._joined) else STUCK_S

    def go_on(self, waiting: int) -> None:
        """Wait no more for those who are missing, until they ask."""
        missing = [seat for seat in self._joined if not seat.asking]
        if missing:
            log.warning(
                "lockstep: %d episodes wait for their turn; of %d alive, the rest neither ask nor leave: going on "
                "without them, so results may depend on timing",
                waiting,
                self.alive,
            )
        for seat in missing:
            seat.joined = False
            self._joined.discard(seat)
        self._expected = 0

    def _leave(self, seat: Seat, *, for_good: bool) -> None:
        self._left += for_good
        seat.joined = False
        self._joined.discard(seat)
        self._expected = min(self.alive - len(self._joined), self._expected + 1)
