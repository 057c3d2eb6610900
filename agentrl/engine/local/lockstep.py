"""Waves: batches of requests whose composition does not depend on timing."""

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
"""Seconds that a wave waits for episodes without a request so far, counted from the last time an episode joined or
left."""
STUCK_S = 60.0
"""Seconds that a wave waits for episodes that have sent requests before."""


@dataclass(slots=True, eq=False)
class Member:
    """An episode in lockstep."""

    joined: bool = False
    """Whether the episode counts: it has sent a request. Waves wait for such episodes."""
    request: Future[Generation] | None = None
    """The future of the last request."""

    @property
    def asking(self) -> bool:
        return self.request is not None and not self.request.done()


_member: ContextVar[Member | None] = ContextVar("agentrl_lockstep_member", default=None)


class Lockstep:
    """Lets a fixed number of episodes take their turns together. `LocalEngine.lockstep` returns this object.

    The last bits of a row's floating-point results depend on the other rows of the batch, and so on the order of
    arrival. In lockstep a batch starts only when every remaining episode waits for a turn. The rows are sorted by
    content. So equal weights, prompts and seeds give equal tokens and bit-identical log-probs, whatever the timing.

    Episodes may wait for each other, for example in a pool with fewer sandboxes than episodes. An episode without a
    sandbox cannot use the engine, and a waiting episode does not return its sandbox. So an episode counts only from its
    first request on. The first wave starts when no new episode has come for `QUIET_S`. Later, each episode that leaves
    lets a new episode begin, and the wave waits `QUIET_S` for the new episode. An episode without a request for
    `STUCK_S` does not count until its next request. Lockstep stays bit-reproducible if resets take less than `QUIET_S`,
    steps take less than `STUCK_S`, and sandboxes are handed out in the order of the episodes' arrival.
    """

    def __init__(self, episodes: int, changed: Callable[[Callable[[], None]], None]) -> None:
        self._episodes, self._entered, self._ended = episodes, 0, 0
        self._joined: set[Member] = set()
        self._expected = episodes
        """The number of episodes without a request for which the wave waits."""
        self._changed = changed

    @property
    def alive(self) -> int:
        """The number of episodes that have not left, including episodes not begun."""
        return self._episodes - self._ended

    @contextmanager
    def episode(self) -> Iterator[None]:
        """An episode uses the engine inside this context. After that, no wave waits for the episode.

        Raises ValueError if more episodes enter than the lockstep was opened for.
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
        """Report that the episode of the current task restarts. The episode counts again from its next request on."""
        if (member := _member.get()) is not None:
            self._changed(lambda: self._leave(member, for_good=False))

    # The worker calls these while it holds its lock

    def ask(self, answer: Future[Generation]) -> None:
        """Register a request of the current task. `answer` is the future of its result."""
        if (member := _member.get()) is None:
            return
        member.request = answer
        if not member.joined:
            member.joined = True
            self._joined.add(member)
            self._expected = max(0, self._expected - 1)

    def is_complete(self, waiting: int) -> bool:
        """Whether `waiting` requests complete the wave."""
        return waiting >= len(self._joined) + self._expected

    def patience(self, waiting: int) -> float:
        """Seconds without a new request after which the wave starts incomplete."""
        return QUIET_S if waiting >= len(self._joined) else STUCK_S

    def go_on(self, waiting: int) -> None:
        """Start the wave without the missing episodes. Each counts again from its next request on."""
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
