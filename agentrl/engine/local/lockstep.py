"""Waves: batches whose composition does not depend on timing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from agentrl.types import Generation

log = logging.getLogger(__name__)

QUIET_S = 5.0
"""How long a wave waits for episodes without a request so far, counted from the last one that joined or ended."""
STUCK_S = 60.0
"""How long a wave waits for episodes that have made requests before."""


@dataclass(slots=True, eq=False)
class Member:
    """One episode in lockstep."""

    joined: bool = False
    """It has used the engine, so waves wait for it."""
    request: Future[Generation] | None = None
    """The answer to its last request."""

    @property
    def asking(self) -> bool:
        return self.request is not None and not self.request.done()


_member: ContextVar[Member | None] = ContextVar("agentrl_lockstep_member", default=None)


class Lockstep:
    """A fixed number of episodes that take their turns together. `LocalEngine.lockstep` makes it.

    The last bits of a row's floating-point results depend on the other rows of its batch, and those depend on which
    request came first. In lockstep a batch starts only when every episode that has not left waits for its turn. Its
    rows are sorted by their content. So equal weights, prompts and seeds give equal tokens and bit-identical log-probs,
    whatever the timing.

    Episodes may wait for each other, for example in a pool with fewer boxes than episodes. An episode without a box
    cannot use the engine, and an episode with a box keeps it while it waits. So an episode counts only from its first
    request on. The first wave starts when no new episode has come for `QUIET_S`. Later, each episode that leaves lets
    another one in, and the wave waits `QUIET_S` for it. An episode that does not come back within `STUCK_S` counts
    again from its next request on. This is also bit-reproducible, if resets take less than `QUIET_S`, steps take less
    than `STUCK_S`, and boxes are given out in the order in which episodes came.
    """

    def __init__(self, episodes: int, changed: Callable[[Callable[[], None]], None]) -> None:
        self._episodes, self._entered, self._ended = episodes, 0, 0
        self._joined: set[Member] = set()
        self._expected = episodes
        """How many episodes without a request the wave waits for."""
        self._changed = changed

    @property
    def alive(self) -> int:
        """The number of episodes that have not left. It includes those that have not begun."""
        return self._episodes - self._ended

    @contextmanager
    def episode(self) -> Iterator[None]:
        """Hold this open while one episode uses the engine. After it no wave waits for the episode.

        Raises ValueError when more episodes enter than were promised.
        """
        if self._entered == self._episodes:
            raise ValueError(f"lockstep expected {self._episodes} episodes, and one more has begun")
        self._entered += 1
        member = Member()
        token = _member.set(member)
        try:
            yield
        finally:
            _member.reset(token)
            self._changed(lambda: self._leave(member, for_good=True))

    def begin_again(self) -> None:
        """Announce that the current task's episode starts over: it counts from its next request on."""
        if (member := _member.get()) is not None:
            self._changed(lambda: self._leave(member, for_good=False))

    # The worker calls these while it holds its lock

    def ask(self, answer: Future[Generation]) -> None:
        """Register a request of the current task."""
        if (member := _member.get()) is None:
            return
        member.request = answer
        if not member.joined:
            member.joined = True
            self._joined.add(member)
            self._expected = max(0, self._expected - 1)

    def is_complete(self, waiting: int) -> bool:
        """Whether this many waiting requests complete the wave."""
        return waiting >= len(self._joined) + self._expected

    def patience(self, waiting: int) -> float:
        """Seconds without a new request after which the wave starts incomplete."""
        return QUIET_S if waiting >= len(self._joined) else STUCK_S

    def go_on(self, waiting: int) -> None:
        """Start without the missing episodes. They count again from their next request on."""
        missing = [member for member in self._joined if not member.asking]
        if missing:
            log.warning(
                "lockstep: %d episodes wait for their turn; the rest of the %d alive neither ask nor end; continuing "
                "without them, so results may depend on timing",
                waiting,
                self.alive,
            )
        for member in missing:
            member.joined = False
            self._joined.discard(member)
        self._expected = 0

    def _leave(self, member: Member, *, for_good: bool) -> None:
        self._ended += for_good
        member.joined = False
        self._joined.discard(member)
        self._expected = min(self.alive - len(self._joined), self._expected + 1)
