"""Share the event loop: episodes that wake at the same time leave time for other work."""

from __future__ import annotations

import asyncio
import time
from collections import deque

from agentrl._util.per_loop import PerLoop

TICK_S = 0.004
"""Seconds of episodes' work in an iteration of the event loop. A smaller value costs CPU, because each iteration polls
the sockets."""
_LEARNED = 0.2
"""Weight of the last iteration in the moving average of the cost of a turn."""


class Gate:
    """Admits the work of turns in the order of arrival: about `TICK_S` seconds in each iteration of an event loop.

    After a weight update, the engine's responses to a thousand requests may arrive at once. Without a gate, the loop
    would render a thousand observations before it serves a socket or a timer.
    """

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._began: float | None = None
        """Time at which the measured iteration began; None if none is measured."""
        self._admitted = 0
        self._cost = TICK_S / 4
        """Average number of seconds that an admitted turn occupies the loop."""

    async def enter(self) -> None:
        """Return at once if this iteration has time left, else in a later iteration. A cancelled caller loses its place
        in the queue."""
        if self._began is None:
            self._measure()
        elif self._waiting or time.perf_counter() - self._began >= TICK_S:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            await waiter
            return
        self._admitted += 1

    def _measure(self) -> None:
        """Begin to measure an iteration, which ends after the work that is ready now."""
        self._began, self._admitted = time.perf_counter(), 0
        asyncio.get_running_loop().call_soon(self._next_round)

    def _next_round(self) -> None:
        assert self._began is not None
        if self._admitted:
            cost = (time.perf_counter() - self._began) / self._admitted
            self._cost += _LEARNED * (cost - self._cost)
        self._began = None
        if not self._waiting:
            return
        quota = max(1, int(TICK_S / max(self._cost, 1e-6)))
        admitted = 0
        while self._waiting and admitted < quota:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                admitted += 1
        self._measure()
        self._admitted = admitted


_gates: PerLoop[Gate] = PerLoop()


async def admission() -> None:
    """Wait until the running event loop has time for a turn's work."""
    await _gates.here(Gate).enter()
