"""Limits on the requests of a session, and on connections without a valid key (strangers)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp.web_protocol import RequestHandler

from agentrl.chat.request import RefusedError

OPEN_REQUESTS = 64
"""Maximum number of open requests of a session, if the session has a rate limit."""
STRANGER_S = 30.0
"""Maximum number of seconds for which a connection without a valid key stays open."""
STRANGERS = 2048
"""Maximum number of open connections without a valid key."""
_BURST_S = 3.0
"""Seconds of the rate that a session may use at once: a burst has at most rate * _BURST_S requests."""


class SessionLimits:
    """Limits on a session's requests a second and open requests. A rate of None means no limits.

    A request above the limits gets status 503, after which clients retry.
    """

    def __init__(self, rate: float | None = None) -> None:
        self._rate = rate
        self._allowance = self._most = max(1.0, (rate or 0.0) * _BURST_S)
        self._updated = time.monotonic()
        self._open = 0

    @contextmanager
    def request(self) -> Iterator[None]:
        """A context manager that counts a request as open. Raises RefusedError for a request above the limits."""
        self._take()
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1

    def _take(self) -> None:
        if self._rate is None:
            return
        now = time.monotonic()
        self._allowance, self._updated = min(self._most, self._allowance + (now - self._updated) * self._rate), now
        if self._allowance < 1:
            raise RefusedError("overloaded", f"this session sends more than {self._rate:g} requests a second; wait")
        if self._open >= OPEN_REQUESTS:
            raise RefusedError("overloaded", f"this session has {OPEN_REQUESTS} open requests; wait until one ends")
        self._allowance -= 1


class Strangers:
    """Connections that have not shown a valid key yet. Their number and their duration are limited."""

    def __init__(self) -> None:
        self._timers: dict[RequestHandler, asyncio.TimerHandle] = {}

    def opened(self, connection: RequestHandler, transport: asyncio.BaseTransport) -> None:
        """Register a new connection. The connection is closed at once above the limit, and after STRANGER_S seconds
        without a valid key."""
        if len(self._timers) >= STRANGERS:
            transport.close()
            return
        self._timers[connection] = asyncio.get_running_loop().call_later(STRANGER_S, self._close, connection, transport)

    def remove(self, connection: RequestHandler) -> None:
        """Remove a connection that was closed, or has shown a valid key."""
        if (timer := self._timers.pop(connection, None)) is not None:
            timer.cancel()

    def _close(self, connection: RequestHandler, transport: asyncio.BaseTransport) -> None:
        self.remove(connection)
        transport.close()
