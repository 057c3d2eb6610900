"""JSON from an HTTP service: deadline, retries, a limit on concurrent requests, and a circuit breaker."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import random
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from agentrl._util.backoff import pause, retry_after
from agentrl._util.per_loop import PerLoop
from agentrl.errors import ConfigError, InfraError, one_line
from agentrl.types import JSON

_LARGE_BYTES = 1 << 20
"""A larger body is sent as a stream, so that aiohttp can send pieces between other work."""
_RETRIED = {408, 409, 425, 429, 500, 502, 503, 504}
_ASKS_TO_WAIT = {429, 503}
_MAX_REFUSED_CONNECTS = 3
"""The most connection attempts while a server has never answered: the server may still be starting."""
_CHAT = "/chat/completions"
_NO_MONEY = ("insufficient_quota", "billing_hard_limit", "insufficient balance")
"""Texts in an HTTP 429 response that mean that the account has no money, so that waiting does not help."""

_NO_JSON = {
    "text/html": "a web page; correct its address",
    "text/event-stream": "a stream, which it was not asked for; let it answer in one piece",
}


class HttpRefusedError(ConfigError):
    """The server will always refuse this request."""

    def __init__(self, message: str, status: int, words: str) -> None:
        super().__init__(message)
        self.status, self.words = status, words


class _BusyError(InfraError):
    """The server asks the client to wait."""

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message)
        self.seconds = seconds


class _ConnectionRefusedError(InfraError):
    """The connection was refused."""


@dataclass(slots=True)
class _LoopState:
    """The state of one event loop. The session closes after its last request."""

    slots: asyncio.Semaphore
    users: int = 0
    session: Any = None


@dataclass(frozen=True, kw_only=True)
class HttpService:
    """JSON over HTTP POST to one URL, from any number of event loops.

    After `trip` consecutive requests failed with all their retries, the circuit is open for `open_s` seconds, and each
    request fails at once. Then a single request is tried. With `trip=0` the circuit never opens.
    """

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    seconds: float = 60.0
    """Seconds for one request with its retries. The wait for a free slot is not counted."""
    retries: int = 3
    concurrency: int = 64
    trip: int = 5
    open_s: float = 30.0
    always_json: bool = False
    """Whether the server always responds with JSON. If so, a web page or a stream means a wrong address; else it may
    come from a proxy in front of a dead server."""
    _loops: PerLoop[_LoopState] = field(default_factory=PerLoop, repr=False)
    _breaker: Breaker = field(default_factory=lambda: Breaker(), repr=False)
    _pause: Pause = field(default_factory=lambda: Pause(), repr=False)

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError(f"the URL {self.url!r} is not valid; write http://host:port/path")

    @property
    def name(self) -> str:
        """The URL without its query, for messages."""
        return self.url.partition("?")[0]

    async def post(
        self, body: JSON, *, headers: Mapping[str, str] | None = None, read: Callable[[JSON], Any] | None = None
    ) -> Any:
        """The JSON of the server's response, or the result of `read` for this JSON.

        Raises InfraError if the server is down, is too slow, or answers with an error. Raises RefusedError, a
        ConfigError, for a request with the HTTP status 400, 401, 403, 404, 405, 413 or 422, since a retry cannot help.
        `read` may raise both. Messages contain no value of a header.

        After a response 429 or 503 with Retry-After, no request is sent until that time, or for a minute if that is
        less.
        """
        sent = {"Content-Type": "application/json", **self.headers, **(headers or {})}
        async with self._session() as session:
            self._breaker.check(self.name, self.open_s)
            try:
                answer = await self._tried(session, body, sent, read or _as_it_is)
            except InfraError as exc:
                self._breaker.failed(str(exc), self.trip, self.open_s)
                raise
        self._breaker.worked()
        return answer

    async def _tried(self, session: Any, body: JSON, headers: Mapping[str, str], read: Callable[[JSON], Any]) -> Any:
        last = "no answer"
        try:
            async with asyncio.timeout(self.seconds) as deadline:
                for attempt in range(self.retries + 1):
                    if attempt:
                        await asyncio.sleep(pause(attempt, 0.4, 10.0, factor=4.0))
                    await self._pause.over(deadline)
                    try:
                        return read(await self._once(session, body, headers))
                    except ConfigError:
                        raise
                    except _ConnectionRefusedError as exc:
                        if not self._breaker.answered and attempt + 1 >= _MAX_REFUSED_CONNECTS:
                            raise InfraError(str(exc)) from None
                        last = str(exc)
                    except (OSError, InfraError, ValueError, RecursionError) as exc:  # the latter two: not JSON
                        last = _hidden(one_line(exc), headers)
                        self._pause.begin(exc.seconds if isinstance(exc, _BusyError) else 0.0)
        except TimeoutError:
            raise InfraError(f"{self.name} did not answer within {self.seconds:g} s; the last error: {last}") from None
        raise InfraError(f"{self.name} failed {self.retries + 1} times; the last error: {last}")

    async def _once(self, session: Any, body: JSON, headers: Mapping[str, str]) -> JSON:
        import aiohttp

        try:
            raw = json.dumps(body).encode()
            data = io.BytesIO(raw) if len(raw) > _LARGE_BYTES else raw
            async with session.post(self.url, data=data, headers=headers) as response:
                if response.status >= 400:
                    self._refuse(response.status, _hidden(await response.text(), headers), response.headers)
                if response.content_type in _NO_JSON:
                    wrong = ConfigError if self.always_json else InfraError
                    raise wrong(f"{self.name} answered with {_NO_JSON[response.content_type]}")
                if not (await response.read()).strip():
                    raise InfraError("an empty answer")
                return await response.json(content_type=None)
        except aiohttp.ClientConnectorError as exc:
            if exc.os_error.errno == errno.ECONNREFUSED:
                raise _ConnectionRefusedError(f"nothing listens at {exc.host}:{exc.port}") from None
            raise InfraError(_hidden(one_line(exc), headers)) from None
        except aiohttp.ClientError as exc:
            raise InfraError(_hidden(one_line(exc), headers)) from None

    def _refuse(self, status: int, body: str, headers: Mapping[str, str]) -> None:
        """Raises the error for an HTTP error status."""
        words = " ".join(body.split())
        hopeless = status == 429 and any(mark in words.lower() for mark in _NO_MONEY)
        if status in _ASKS_TO_WAIT and not hopeless:
            raise _BusyError(f"HTTP {status}: {words[:200]}", retry_after(headers))
        if (status in _RETRIED or status >= 500) and not hopeless:
            raise InfraError(f"HTTP {status}: {words[:200]}")
        raise HttpRefusedError(
            f"{self.name} refuses the request with HTTP {status}: {words[:300]}; {self._remedy(status)}",
            status,
            words,
        )

    def _remedy(self, status: int) -> str:
        if status == 404 and self.name.endswith(_CHAT) and "/v1" not in self.name:
            return f"correct its address: most end with /v1, as in {self.name.removesuffix(_CHAT)}/v1"
        return "correct its address or its settings"

    @asynccontextmanager
    async def kept_open(self) -> AsyncIterator[None]:
        """While the context is open, the connections of this event loop are kept for the next request."""
        async with self._connected(self._of_loop()):
            yield

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[Any]:
        mine = self._of_loop()
        async with mine.slots, self._connected(mine) as session:
            yield session

    @asynccontextmanager
    async def _connected(self, mine: _LoopState) -> AsyncIterator[Any]:
        import aiohttp

        if mine.session is None:
            timeout = aiohttp.ClientTimeout(total=None)  # one deadline over all retries is set above
            mine.session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout)
        mine.users += 1
        try:
            yield mine.session
        finally:
            mine.users -= 1
            if not mine.users:
                session, mine.session = mine.session, None
                await session.close()

    def _of_loop(self) -> _LoopState:
        return self._loops.here(lambda: _LoopState(asyncio.Semaphore(self.concurrency)))


def _as_it_is(answer: JSON) -> JSON:
    return answer


def _hidden(words: str, headers: Mapping[str, str]) -> str:
    """The text without any secret of the headers: a server may repeat parts of the request."""
    for name, value in headers.items():
        if name.lower() not in ("content-type", "accept", "user-agent"):
            for secret in (value, value.rpartition(" ")[2]):
                words = words.replace(secret, "***") if len(secret) > 3 else words
    return words


class Pause:
    """The time before which a server accepts no request. All event loops share the pause."""

    def __init__(self) -> None:
        self._until = 0.0

    def begin(self, seconds: float) -> None:
        self._until = max(self._until, time.monotonic() + seconds)

    async def over(self, deadline: asyncio.Timeout) -> None:
        """Wait until the pause ends, and a random part longer, so that requests are spread out. The deadline moves by
        the time of the wait."""
        seconds = self._until - time.monotonic()
        if seconds > 0:
            seconds += random.uniform(0.0, min(1.0, 0.2 * seconds))
            when = deadline.when()
            deadline.reschedule(None if when is None else when + seconds)
            await asyncio.sleep(seconds)


class Breaker:
    """Counts consecutive failures. All event loops share the counter."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failures = 0
        self._until = 0.0
        self._error = ""
        self.answered = False
        """Whether the server has responded at least once."""

    def check(self, url: str, open_s: float) -> None:
        """Raises InfraError while the circuit is open. Afterwards a single request passes, and the other requests are
        refused until the first has succeeded."""
        with self._lock:
            if not self._until:
                return
            seconds = self._until - time.monotonic()
            if seconds > 0:
                raise InfraError(f"{url} is not asked for {seconds:.0f} s, it failed too often: {self._error}")
            self._until = time.monotonic() + open_s

    def failed(self, error: str, trip: int, open_s: float) -> None:
        with self._lock:
            self._failures, self._error = self._failures + 1, error
            if 0 < trip <= self._failures:
                self._until = time.monotonic() + open_s

    def worked(self) -> None:
        with self._lock:
            self._failures, self._until, self.answered = 0, 0.0, True
