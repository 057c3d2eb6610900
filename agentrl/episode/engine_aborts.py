"""Repeat requests that the engine itself aborts, for example to load new weights, for a bounded time."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass

from agentrl._util.backoff import pause
from agentrl._util.concurrency import uncounted
from agentrl.errors import EngineError

log = logging.getLogger("agentrl")

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0
"""The first and the longest pause between two requests, in seconds. Each pause is twice the pause before."""
_REQUEST_S = 10.0
"""Maximum number of seconds of a request that count as waiting time: a paused engine responds only after its new
weights are loaded."""
_USUAL = 4
"""Number of consecutive aborts before a warning is logged."""
_WARN_S = 60.0

_warned_at = float("-inf")


@dataclass(slots=True)
class EngineAborts:
    """The consecutive aborts of a turn without a new token."""

    bound_s: float
    count: int = 0
    lost_s: float = 0.0

    async def wait(self, tokens: int, request_s: float) -> None:
        """Wait before the next request. The last request took `request_s` seconds, and sampled `tokens` tokens before
        the abort.

        Raises EngineError after `bound_s` seconds without a token.
        """
        if tokens:
            self.count, self.lost_s = 0, 0.0
        self.count += 1
        seconds = pause(self.count, _FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        self.lost_s += min(request_s, _REQUEST_S)
        if self.count > 1 and self.lost_s >= self.bound_s:
            raise EngineError(
                f"the engine aborted {self.count} requests for a turn within {self.lost_s:.0f} s and sampled no token, "
                "although the host did not abort; see its log (engine_retry_s bounds this)"
            )
        if self.count > _USUAL:
            _warn(self)
        with uncounted():  # the episode is not slow, but without an engine
            await asyncio.sleep(seconds)
        self.lost_s += seconds


def _warn(aborts: EngineAborts) -> None:
    """Log a warning the first time, and INFO afterwards, because thousands of turns may wait at the same time."""
    global _warned_at
    now = time.monotonic()
    level = logging.WARNING if now - _warned_at >= _WARN_S else logging.INFO
    _warned_at = now if level == logging.WARNING else _warned_at
    log.log(
        level,
        "the engine has aborted %d requests for a turn, and the host has not asked for it: they are repeated for %g s",
        aborts.count,
        aborts.bound_s,
    )
