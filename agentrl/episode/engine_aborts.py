"""Repeated requests for a turn that the engine aborts by itself, as for new weights. The time is bounded."""

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
"""The most seconds of a request that count as waiting: a paused engine answers only with its new weights."""
_USUAL = 4
"""Number of aborts in a row that cause no warning."""
_WARN_S = 60.0

_warned_at = float("-inf")


@dataclass(slots=True)
class EngineAborts:
    """The aborts of a turn since the last token."""

    bound_s: float
    count: int = 0
    lost_s: float = 0.0

    async def wait(self, tokens: int, request_s: float) -> None:
        """Wait before the next request. The last request took `request_s` seconds, and was aborted after `tokens`
        tokens.

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
    """Thousands of turns may wait, so the rest is logged as INFO."""
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
