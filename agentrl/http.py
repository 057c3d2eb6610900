"""JSON from an HTTP service: deadline, retries, a bound on requests under way, and a circuit breaker."""

from __future__ import annotations

import asyncio
import io
import json
import random
import threading
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from agentrl.errors import ConfigError, InfraError, told
from agentrl.types import JSON

_LARGE_BYTES = 1 << 20
"""aiohttp sends a larger body in pieces, between other work, and wants a stream for it."""
_RETRIED = {408, 409, 425, 429, 500, 502, 503, 504}


@dataclass(slots=True)
class _OfLoop:
    """What belongs to one event loop. The session lives while it is in use, so nobody has to close it."""

    slots: asyncio.Semaphore
    users: int = 0
    session: Any = None


@dataclass(frozen=True, kw_only=True)
class Service:
    """JSON over HTTP POST to one URL, from any number of event loops.

    After `trip` requests in a row that failed with all their retries, the circuit is open for `open_s` seconds: each
    request fails at once. Then one request is tried. With `trip=0` the circuit never opens.
    """

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    seconds: float = 60.0
    """Deadline of one request with its retries. Waiting for room is not counted."""
    retries: int = 3
    concurrency: int = 64
    trip: int = 5
    open_s: float = 30.0
    _loops: dict[asyncio.AbstractEventLoop, _OfLoop] = field(default_factory=dict, repr=False)
    _breaker: Breaker = field(default_factory=lambda: Breaker(), repr=False)

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError(f"the URL {self.url!r} is none; write http://host:port/path")

    async def post(self, body: JSON) -> JSON:
        """The JSON that the server answers.

        Raises InfraError if it does not: it is down, too slow, or answers with an error. Raises ConfigError for a
        request that it will always refuse: 400, 401, 403, 404, 405, 413, 422.
        """
        async with self._session() as session:
            self._breaker.check(self.url, self.open_s)
            try:
                answer = await self._tried(session, body)
            except InfraError as exc:
                self._breaker.failed(str(exc), self.trip, self.open_s)
                raise
        self._breaker.worked()
        return answer

    async def _tried(self, session: Any, body: JSON) -> JSON:
        last = "no answer"
        try:
            async with asyncio.timeout(self.seconds):
                for attempt in range(self.retries + 1):
                    if attempt:
                        await asyncio.sleep(min(0.1 * 4**attempt, 10.0) * random.uniform(0.5, 1.0))
                    try:
                        return await self._once(session, body)
                    except ConfigError:
                        raise
                    except (OSError, InfraError, ValueError, RecursionError) as exc:  # the latter two: no JSON
                        last = told(exc)
        except TimeoutError:
            raise InfraError(f"{self.url} did not answer within {self.seconds:g} s; the last error: {last}") from None
        raise InfraError(f"{self.url} failed {self.retries + 1} times; the last error: {last}")

    async def _once(self, session: Any, body: JSON) -> JSON:
        import aiohttp

        try:
            raw = json.dumps(body).encode()
            data = io.BytesIO(raw) if len(raw) > _LARGE_BYTES else raw
            headers = {"Content-Type": "application/json", **self.headers}
            async with session.post(self.url, data=data, headers=headers) as response:
                if response.status in _RETRIED or response.status >= 500:
                    raise InfraError(f"HTTP {response.status}: {(await response.text())[:200]}")
                if response.status >= 400:
                    raise ConfigError(
                        f"{self.url} refuses the request with HTTP {response.status}: "
                        f"{' '.join((await response.text())[:300].split())}; correct its address or its settings"
                    )
                return await response.json(content_type=None)
        except aiohttp.ClientError as exc:
            raise InfraError(told(exc)) from exc

    @asynccontextmanager
    async def kept_open(self) -> AsyncIterator[None]:
        """Within it, the connections of this event loop wait for the next request."""
        async with self._connected(self._of_loop()):
            yield

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[Any]:
        mine = self._of_loop()
        async with mine.slots, self._connected(mine) as session:
            yield session

    @asynccontextmanager
    async def _connected(self, mine: _OfLoop) -> AsyncIterator[Any]:
        import aiohttp

        if mine.session is None:
            timeout = aiohttp.ClientTimeout(total=None)  # one deadline over all retries stands above
            mine.session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout)
        mine.users += 1
        try:
            yield mine.session
        finally:
            mine.users -= 1
            if not mine.users:
                session, mine.session = mine.session, None
                await session.close()

    def _of_loop(self) -> _OfLoop:
        loop = asyncio.get_running_loop()
        if loop not in self._loops:
            for other in list(self._loops):
                if other.is_closed():
                    self._loops.pop(other, None)
            self._loops[loop] = _OfLoop(asyncio.Semaphore(self.concurrency))
        return self._loops[loop]


class Breaker:
    """Counts failures in a row. It serves all event loops."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failures = 0
        self._until = 0.0
        self._error = ""

    def check(self, url: str, open_s: float) -> None:
        """Raises InfraError while the circuit is open. After that it lets one request through, and is open again until
        that one has worked."""
        with self._lock:
            if not self._until:
                return
            left = self._until - time.monotonic()
            if left > 0:
                raise InfraError(f"{url} is not asked for {left:.0f} s, it failed too often: {self._error}")
            self._until = time.monotonic() + open_s

    def failed(self, error: str, trip: int, open_s: float) -> None:
        with self._lock:
            self._failures, self._error = self._failures + 1, error
            if 0 < trip <= self._failures:
                self._until = time.monotonic() + open_s

    def worked(self) -> None:
        with self._lock:
            self._failures, self._until = 0, 0.0
