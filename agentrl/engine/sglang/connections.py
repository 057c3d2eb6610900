"""HTTP to a server and the server's workers: an aiohttp session for each event loop, credentials, certificates,
errors."""

from __future__ import annotations

import asyncio
import base64
import io
import logging
import os
import re
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TypeVar

import aiohttp
from yarl import URL

from agentrl._util.backoff import pause, retry_after
from agentrl._util.concurrency import uncounted
from agentrl._util.per_loop import PerLoop
from agentrl.engine.sglang.answers import error_message
from agentrl.errors import ConfigError, EngineError, RequestError

_log = logging.getLogger(__name__)

T = TypeVar("T")

API_KEY_VARIABLE = "AGENTRL_API_KEY"
_RETRIED = frozenset({408, 429, 500, 502, 503, 504})
"""The HTTP statuses of overload, restarts and gateways, after which a request is repeated. Any other error status is
final."""
_REQUEST_AT_FAULT = frozenset({400, 413, 422})
"""The HTTP statuses that blame the request itself."""
_CONNECT_S = 30.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 5.0
_ATTEMPT_S = 30.0
"""The most seconds of a failed attempt that count as time without a server. During a longer attempt, the server was
working."""
_CLOSE_S = 5.0
_NONE: Mapping[str, str] = {}


class UnavailableError(EngineError):
    """An attempt got no response, but a retry may succeed. `retry_after` is the number of seconds that the server asks
    to wait."""

    retry_after: float = 0.0


@dataclass(frozen=True, slots=True)
class Address:
    """The URL of a server, and the credentials. `url` contains no credentials, so errors and logs may show `url`."""

    url: str
    headers: Mapping[str, str]

    @classmethod
    def read(cls, url: str, api_key: str | None = None) -> Address:
        """Check a URL. The default of `api_key` is the environment variable AGENTRL_API_KEY. Raises ConfigError."""
        for name, value in (("url", url), ("api_key", api_key or "")):
            if not isinstance(value, str):
                raise ConfigError(f"the engine's {name} must be text, not a {type(value).__name__}; put it in quotes")
        visible_url = f"...@{url.rpartition('@')[2]}" if "@" in url else url
        parsed = _parsed(url, visible_url)
        if parsed.user is None and parsed.password is None:
            return cls(url.rstrip("/"), _bearer(api_key or os.environ.get(API_KEY_VARIABLE)))
        if api_key:
            raise ConfigError(
                f"engine url {visible_url!r} has a user name, and there is an api_key; give one of the two"
            )
        return cls(str(parsed.with_user(None)).rstrip("/"), _basic(parsed.user or "", parsed.password or ""))


def _parsed(url: str, visible_url: str) -> URL:
    """The URL of a server, parsed. Raises ConfigError with `visible_url` in its message."""
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"engine url {visible_url!r} must start with http:// or https://")
    try:
        parsed = URL(url)
        parsed.port  # noqa: B018 - read lazily, and may raise ValueError
    except ValueError as exc:
        raise ConfigError(f"engine url {visible_url!r} cannot be read; write http://HOST:PORT") from exc
    if parsed.host is None or parsed.query_string or parsed.fragment:
        raise ConfigError(f"engine url {visible_url!r} must be http://HOST:PORT, with a path at most")
    return parsed


def without_credentials(url: str) -> str:
    return re.sub("//[^/]*@", "//", url, count=1)


class Connections:
    """Sends requests from several event loops and threads.

    slime runs training and evaluation on two event loops in the same process, each with a separate session. `_session`
    closes the sessions of closed loops, `close` closes the rest.

    Without `keep_alive` each request has a separate connection: a server may close an idle connection at the very
    moment of reuse, and a request that changes the server must not simply be repeated.
    """

    def __init__(self, address: Address, *, limit: int, ca: str | Path | None = None, keep_alive: bool = True) -> None:
        self.address = address
        self.sessions: PerLoop[aiohttp.ClientSession] = PerLoop()
        self._limit = limit
        self._keep_alive = keep_alive
        self._tls = _tls(address, ca)
        self._closed = False

    async def post(self, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float) -> bytes:
        """Send a POST request, and return the body of a response with status 200.

        Raises UnavailableError if a retry may help, TimeoutError after `timeout_s`, RequestError if the request is at
        fault, and EngineError for every other problem.
        """
        return await self._ask("POST", url, timeout_s, body, headers)

    async def get(self, url: str, timeout_s: float) -> bytes:
        """Send a GET request. Raises the same errors as `post`."""
        return await self._ask("GET", url, timeout_s)

    async def _ask(
        self, method: str, url: str, timeout_s: float, body: bytes | None = None, headers: Mapping[str, str] = _NONE
    ) -> bytes:
        session = await self._session()
        try:
            # With BytesIO a body of megabytes is written in pieces, and other requests run in between.
            async with session.request(
                method,
                url,
                data=None if body is None else io.BytesIO(body),
                headers=None if body is None else {"Content-Type": "application/json", **headers},
                timeout=aiohttp.ClientTimeout(total=timeout_s, sock_connect=_CONNECT_S),
                allow_redirects=False,
            ) as response:
                answer = await response.read()
        except aiohttp.ConnectionTimeoutError as exc:
            raise UnavailableError(f"{url}: cannot connect: {exc}") from exc
        except TimeoutError:
            raise
        except aiohttp.ClientSSLError as exc:
            raise _tls_error(url, exc) from exc
        except (aiohttp.ClientError, OSError) as exc:
            raise UnavailableError(f"{url}: {type(exc).__name__}: {exc}") from exc
        if response.status != 200:
            raise _status_error(url, response, answer)
        return answer

    async def _session(self) -> aiohttp.ClientSession:
        if self._closed:
            raise EngineError(f"the engine for {self.address.url} is closed")
        closed, session = self.sessions.pop_closed(), self.sessions.here(self._open)
        for loop, other in closed:
            await _close(loop, other)
        return session

    def _open(self) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(limit=self._limit, ssl=self._tls, force_close=not self._keep_alive)
        return aiohttp.ClientSession(connector=connector, headers=self.address.headers)

    async def close(self) -> None:
        """Close the sessions of all event loops. Safe to call twice."""
        self._closed = True
        while self.sessions:
            await _close(*self.sessions.popitem())


async def patiently(
    attempt: Callable[[], Awaitable[T]],
    retry_s: float,
    *,
    wait: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ended: Callable[[], bool] = lambda: False,
    note: Callable[[UnavailableError], None] = lambda exc: None,
) -> T | None:
    """The result of an attempt, repeated for `retry_s` seconds while the server is unavailable.

    Returns None if `ended` returns true before an attempt succeeds. `wait` is called for each pause, and `note` before
    each pause. Raises EngineError after the last attempt.
    """
    away = 0.0
    for number in count(1):
        started = time.monotonic()
        try:
            return await attempt()
        except UnavailableError as exc:
            if number > 1:  # the first attempt was sent to a running server
                away += min(time.monotonic() - started, _ATTEMPT_S)
            if ended():
                break
            if away >= retry_s:
                attempts = "1 attempt" if number == 1 else f"{number} attempts"
                raise EngineError(f"{exc}; gave up after {attempts} in {away:.0f} s") from exc
            note(exc)
            seconds = max(pause(number, _FIRST_PAUSE_S, _LONGEST_PAUSE_S), exc.retry_after)
            with uncounted():  # the episode is not slow, but lacks an engine
                await wait(seconds)
            away += seconds
        if ended():
            break
    return None


async def _close(loop: asyncio.AbstractEventLoop, session: aiohttp.ClientSession) -> None:
    """Close a session in any state of its event loop. A session may be closed only in its own loop."""
    try:
        if loop.is_closed() or loop is asyncio.get_running_loop():
            await session.close()
        elif loop.is_running():
            closing = asyncio.run_coroutine_threadsafe(session.close(), loop)
            await asyncio.wait([asyncio.wrap_future(closing)], timeout=_CLOSE_S)
        else:  # a stopped loop closes the session at the next run
            loop.call_soon_threadsafe(lambda: loop.create_task(session.close()))
    except RuntimeError as exc:  # the loop has ended meanwhile
        _log.debug("a session of an event loop that ended is left to it: %s", exc)


def _basic(user: str, password: str) -> Mapping[str, str]:
    return {"Authorization": f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"}


def _bearer(api_key: str | None) -> Mapping[str, str]:
    if not api_key:
        return {}
    if not re.fullmatch(r"[\x21-\x7e]+", api_key):
        raise ConfigError("the engine's api_key must be printable ASCII without spaces")
    return {"Authorization": f"Bearer {api_key}"}


def _tls(address: Address, ca: str | Path | None) -> ssl.SSLContext | bool:
    if ca is None and not address.url.startswith("https://"):
        return True
    try:
        return ssl.create_default_context(cafile=ca)  # without `ca`: the system's, or SSL_CERT_FILE
    except OSError as exc:  # ssl.SSLError is one
        raise ConfigError(f"ca {str(ca)!r} is not a file of certificates in PEM form: {exc.strerror or exc}") from exc


def _tls_error(url: str, exc: aiohttp.ClientSSLError) -> EngineError:
    """The error for a TLS problem. Only a broken connection is worth a retry: a certificate does not change."""
    if isinstance(exc, aiohttp.ClientConnectorCertificateError):
        return EngineError(
            f"{url}: the server's certificate is not trusted: {exc.certificate_error}; "
            "name its CA by SGLangEngine(ca=FILE) or the environment variable SSL_CERT_FILE"
        )
    if isinstance(exc.os_error, ssl.SSLEOFError):
        return UnavailableError(f"{url}: {type(exc).__name__}: {exc}")
    return EngineError(f"{url}: no TLS connection: {exc}; does the server speak https?")


def _status_error(url: str, response: aiohttp.ClientResponse, answer: bytes) -> EngineError:
    message = f"{url}: HTTP {response.status}: {error_message(answer)}"
    if response.status in _RETRIED:
        error = UnavailableError(message)
        error.retry_after = retry_after(response.headers)
        return error
    if location := response.headers.get("Location"):
        return EngineError(f"{message}: moved to {without_credentials(location)}; give that as the engine's url")
    if response.status in _REQUEST_AT_FAULT:
        doubt = "vocab" in message and "mismatch" not in message
        return RequestError(f"{message}; tokenizer mismatch?" if doubt else message)
    return EngineError(message)
