"""A client of SGLang's native HTTP protocol, directly or through its router."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import math
import random
import re
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, get_args
from uuid import uuid4

import aiohttp

from agentrl.engine.base import Generation, SamplingParams
from agentrl.engine.sglang.encoding import HistoryEncoder
from agentrl.errors import ConfigError, EngineError
from agentrl.types import FinishReason

_log = logging.getLogger(__name__)

# Overload, restarts and gateways in between: worth asking again. Any other error status is final.
_RETRIED = frozenset({408, 429, 500, 502, 503, 504})
_CONTROL_S = 5.0
"""Seconds for a control request (abort, workers, server_info): they are answered at once or not at all."""
_ABORT_PAUSE_S = 0.05
"""First wait before an abort is sent again; then doubling."""
_WORKERS_S = 10.0
"""Seconds for which a router's list of workers is believed."""


class _UnavailableError(EngineError):
    """This attempt got no answer; another one may."""


@dataclass(slots=True)
class _Request:
    """A call of `generate` in progress: what `abort` needs to know of it."""

    wire_rid: str = ""
    aborted: bool = False
    gone: bool = False


class SGLangEngine:
    """Generates with an SGLang server or router at `url`. Safe to use from several event loops and threads.

    `timeout` is in seconds, for the whole answer of one attempt. `retries` counts further attempts after refused or
    lost connections and the statuses 408, 429, 500, 502, 503 and 504, with exponential backoff (0.5 s, 1 s, 2 s, ... at
    most 15 s, less up to a half by chance). `extra` holds further fields of the request body, say
    `{"return_routed_experts": True}`; what they bring back is in `Generation.meta`, SGLang's whole `meta_info`.

    Requests of a session carry the header X-SMG-Routing-Key, by which a router keeps them on one worker and its cache.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: float = 3600.0,
        retries: int = 6,
        max_connections: int = 4096,
        api_key: str | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"engine url {url!r} must start with http:// or https://")
        self.url = url.rstrip("/")
        self._timeout = timeout
        self._retries = retries
        self._max_connections = max_connections
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._extra = dict(extra or {})
        self._history = HistoryEncoder()
        # aiohttp binds a session to the loop it was made in, and slime runs training and evaluation on loops of their
        # own in one process. A session holds its loop, so weak keys would keep nothing from leaking: `_session` closes
        # those of dead loops, `close` the rest.
        self._sessions: dict[asyncio.AbstractEventLoop, aiohttp.ClientSession] = {}
        self._lock = threading.Lock()
        self._requests: dict[str, _Request] = {}
        self._abandoned: set[asyncio.Task[None]] = set()
        self._workers_seen: tuple[float, list[str]] = (-math.inf, [])
        self._context_length: int | None = None
        self._closed = False

    async def generate(
        self, input_ids: Sequence[int], sampling_params: SamplingParams, *, session_id: str = "", rid: str = ""
    ) -> Generation:
        """Continue `input_ids`; sampling parameters are passed on as given.

        Generating twice costs time and changes nothing, so an attempt without an answer is made again; a refusal (an
        over-long prompt, say) is final and raises EngineError with SGLang's own words. Cancellation and time-out abort
        the request at the worker before they are raised.
        """
        fields = {
            # What the trainer sees is token ids; text is only read by people, and they want to see all of it.
            "sampling_params": {
                **sampling_params,
                "skip_special_tokens": False,
                "no_stop_trim": True,
                "spaces_between_special_tokens": False,
            },
            "return_logprob": True,
            "stream": False,
            **self._extra,
        }
        history = self._history.encode(session_id, input_ids)
        headers = {"X-SMG-Routing-Key": session_id} if session_id else {}
        rid = rid or uuid4().hex
        request = self._requests[rid] = _Request()
        try:
            for attempt in count(1):
                # A worker may still hold the rid of a lost attempt, and refuses to have it twice.
                request.wire_rid = f"{rid}-{uuid4().hex}"
                body = _body(history, {**fields, "rid": request.wire_rid})
                try:
                    return _generation(await self._attempt(body, headers, request.wire_rid), self.url)
                except _UnavailableError as exc:
                    if attempt > self._retries and not request.aborted:
                        raise EngineError(f"{exc}; gave up after {attempt} attempts") from exc
                    _log.info("%s; attempt %d of %d", exc, attempt, self._retries + 1)
                if not request.aborted:
                    await asyncio.sleep(min(15.0, 0.25 * 2**attempt) * random.uniform(0.5, 1.0))
                if request.aborted:
                    break
        finally:
            request.gone = True
            self._requests.pop(rid, None)
        return Generation((), (), "abort")

    async def _attempt(self, body: bytes, headers: Mapping[str, str], wire_rid: str) -> bytes:
        session = await self._session()
        try:
            # As BytesIO a body of megabytes is written in pieces, between which other requests get their turn.
            async with session.post(
                f"{self.url}/generate",
                data=io.BytesIO(body),
                headers={"Content-Type": "application/json", **headers},
                timeout=aiohttp.ClientTimeout(total=self._timeout, sock_connect=30.0),
            ) as response:
                answer = await response.read()
        except asyncio.CancelledError:
            await self._abandon(wire_rid)
            raise
        except aiohttp.ConnectionTimeoutError as exc:
            raise _UnavailableError(f"{self.url}/generate: cannot connect: {exc}") from exc
        except TimeoutError as exc:
            await self._abandon(wire_rid)
            raise EngineError(
                f"{self.url}/generate: no answer within {self._timeout:g} s; "
                "raise the engine's timeout or lower max_new_tokens"
            ) from exc
        except (aiohttp.ClientError, OSError) as exc:
            raise _UnavailableError(f"{self.url}/generate: {type(exc).__name__}: {exc}") from exc
        if response.status != 200:
            raise _error(f"{self.url}/generate", response.status, answer)
        return answer

    async def abort(self, rid: str | None = None) -> None:
        """End one request of this engine, or all requests of its workers, whoever sent them. Never raises.

        A worker forgets an abort that overtakes its request, in a router's queue say; so it is sent again until the
        requests of this engine are gone, for at most 5 s.
        """
        requests = [request for name, request in list(self._requests.items()) if rid in (None, name)]
        for request in requests:
            request.aborted = True
        commands = [{"abort_all": True}] if rid is None else [{"rid": request.wire_rid} for request in requests]
        pause, deadline = _ABORT_PAUSE_S, time.monotonic() + _CONTROL_S
        while commands and time.monotonic() < deadline:
            await asyncio.gather(*[self._abort_at_workers(command) for command in commands])
            await asyncio.sleep(pause)
            pause = min(2 * pause, 1.0)
            commands = [{"rid": request.wire_rid} for request in requests if not request.gone]

    async def context_length(self) -> int:
        """The longest sequence that every living worker takes, in tokens, as their /server_info says; asked once.

        Raises EngineError when no worker answers, or one does not say.
        """
        if self._context_length is None:
            asked = [self._context_length_of(worker) for worker in await self._workers()]
            answers = await asyncio.gather(*asked, return_exceptions=True)
            lengths = [answer for answer in answers if isinstance(answer, int)]
            for answer in answers:
                if isinstance(answer, BaseException) and not (lengths and isinstance(answer, _UnavailableError)):
                    raise answer
            self._context_length = min(lengths)
        return self._context_length

    async def close(self) -> None:
        """Close the connections of all event loops. Safe to call twice."""
        here = asyncio.get_running_loop()
        if pending := [task for task in self._abandoned if task.get_loop() is here]:
            await asyncio.wait(pending, timeout=_CONTROL_S)
        self._closed = True
        with self._lock:
            sessions, self._sessions = self._sessions, {}
        for loop, session in sessions.items():
            if loop is here or not loop.is_running():
                await session.close()
            else:
                closing = asyncio.run_coroutine_threadsafe(session.close(), loop)
                await asyncio.wait([asyncio.wrap_future(closing)], timeout=_CONTROL_S)

    async def _session(self) -> aiohttp.ClientSession:
        if self._closed:
            raise EngineError(f"the engine for {self.url} is closed")
        loop = asyncio.get_running_loop()
        with self._lock:
            dead = [self._sessions.pop(other) for other in list(self._sessions) if other.is_closed()]
            if (session := self._sessions.get(loop)) is None:
                connector = aiohttp.TCPConnector(limit=self._max_connections)
                session = self._sessions[loop] = aiohttp.ClientSession(connector=connector, headers=self._headers)
        for other_session in dead:
            await other_session.close()
        return session

    async def _abandon(self, wire_rid: str) -> None:
        """End a request that nobody waits for any more, even if the waiting for this is cancelled in turn."""
        task = asyncio.create_task(self._abort_at_workers({"rid": wire_rid}))
        self._abandoned.add(task)
        task.add_done_callback(self._abandoned.discard)
        await asyncio.shield(task)

    async def _abort_at_workers(self, command: Mapping[str, Any]) -> None:
        """Tell all workers: the router has no /abort_request, and does not say who serves what. Best effort."""

        async def tell(worker: str) -> None:
            try:
                session = await self._session()
                async with session.post(f"{worker}/abort_request", json=command) as response:
                    if response.status != 200:
                        _log.warning("%s/abort_request: HTTP %d", worker, response.status)
            except (aiohttp.ClientError, OSError, EngineError) as exc:
                _log.warning("%s/abort_request: %s: %s", worker, type(exc).__name__, exc)

        try:
            async with asyncio.timeout(_CONTROL_S):
                await asyncio.gather(*[tell(worker) for worker in await self._workers()])
        except TimeoutError:
            _log.warning("%s: abort of %s not confirmed within %g s", self.url, dict(command), _CONTROL_S)

    async def _workers(self) -> list[str]:
        """The servers behind the URL: what a router lists, or the URL itself where there is no such list."""
        seen, workers = self._workers_seen
        if time.monotonic() - seen < _WORKERS_S:
            return workers
        try:
            listed = (await self._get(f"{self.url}/workers"))["workers"]
            # With --dp-aware a router lists each rank of a server, as http://host:port@rank.
            workers = list(dict.fromkeys(re.sub(r"/?(@\d+)?$", "", worker["url"], count=1) for worker in listed))
        except (EngineError, KeyError, TypeError):
            pass  # a router that is busy is believed to have the workers it had
        workers = workers or [self.url]
        self._workers_seen = (time.monotonic(), workers)
        return workers

    async def _context_length_of(self, worker: str) -> int:
        try:
            info = await self._get(f"{worker}/server_info")
        except EngineError:
            info = await self._get(f"{worker}/get_server_info")  # its older name
        # context_length is null unless set by hand; the scheduler's own bounds are always there.
        known = [info.get(name) for name in ("max_req_input_len", "context_length", "max_total_num_tokens")]
        lengths = [length for length in known if isinstance(length, int) and length > 0]
        if not lengths:
            raise EngineError(f"{worker}/server_info names no context length; set limits.context")
        return min(lengths)

    async def _get(self, url: str) -> Any:
        """A JSON document. Raises EngineError for whatever else comes, _UnavailableError for no answer."""
        session = await self._session()
        try:
            async with session.get(url, timeout=aiohttp.ClientTimeout(total=_CONTROL_S)) as response:
                text = await response.read()
        except (aiohttp.ClientError, OSError) as exc:
            raise _UnavailableError(f"{url}: {type(exc).__name__}: {exc}") from exc
        if response.status != 200:
            raise _error(url, response.status, text)
        try:
            return json.loads(text)
        except ValueError as exc:
            raise EngineError(f"{url}: not JSON: {exc}") from exc


def _body(history: list[bytes], fields: Mapping[str, Any]) -> bytes:
    """`json.dumps({"input_ids": [...], **fields})`, the ids being encoded already."""
    return b"".join((b'{"input_ids": [', *history, b"], ", json.dumps(fields)[1:].encode()))


def _error(url: str, status: int, answer: bytes) -> EngineError:
    kind = _UnavailableError if status in _RETRIED else EngineError
    return kind(f"{url}: HTTP {status}: {_message(answer)}")


def _message(answer: bytes) -> str:
    """What an error response says: SGLang's {"error": {"message"}}, its {"message"}, FastAPI's {"detail"}, or text."""
    try:
        said = json.loads(answer)
    except ValueError:
        said = answer.decode(errors="replace")
    for key in ("error", "message", "detail"):
        if isinstance(said, dict) and key in said:
            said = said[key]
    return " ".join(str(said).split())[:1000]


def _generation(answer: bytes, url: str) -> Generation:
    """Read SGLang's answer. Raises EngineError for anything from which a trainer could not train."""
    try:
        meta = json.loads(answer)["meta_info"]
        finish = meta["finish_reason"]
        finish_reason, matched = finish["type"], finish.get("matched")
        # Absent when a request was aborted before its first token.
        scored = meta.get("output_token_logprobs") or []
        log_probs = [item[0] for item in scored]
        tokens = [item[1] for item in scored]
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as exc:
        said = " ".join(answer[:200].decode(errors="replace").split())
        raise EngineError(f"{url}/generate: not an answer of SGLang ({type(exc).__name__}: {exc}): {said}") from exc
    if finish_reason not in get_args(FinishReason):
        raise EngineError(f"{url}/generate: unknown finish_reason {finish_reason!r}")
    if not tokens and meta.get("completion_tokens"):
        raise EngineError(f"{url}/generate: {meta['completion_tokens']} tokens came without output_token_logprobs")
    for i, log_prob in enumerate(log_probs):
        if not isinstance(log_prob, float | int) or not math.isfinite(log_prob):
            raise EngineError(f"{url}/generate: log-prob {i} of {len(log_probs)} is {log_prob!r} (token {tokens[i]})")
    return Generation(
        tokens=tokens,
        log_probs=log_probs,
        finish_reason=finish_reason,
        matched=matched,
        weight_version=meta.get("weight_version"),
        cached_tokens=meta.get("cached_tokens") or 0,
        meta=meta,
    )
