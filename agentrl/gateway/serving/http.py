"""An HTTP server for the vendors' API formats (wires): reads a request, finds its session, and sends the response."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from agentrl.chat.request import Exchange, RefusedError, SessionHandler
from agentrl.chat.wires import reading
from agentrl.chat.wires.base import ReplyWriter, Wire
from agentrl.chat.wires.chat import Chat
from agentrl.chat.wires.gemini import Gemini
from agentrl.chat.wires.images import with_images
from agentrl.chat.wires.messages import Messages
from agentrl.chat.wires.responses import Responses
from agentrl.chat.wires.storing import conversation_of
from agentrl.episode.gate import admission
from agentrl.gateway.endpoint import RESET_PATH
from agentrl.gateway.serving.answering import json_response, respond
from agentrl.gateway.serving.bodies import BODY_BYTES, DeniedError, body_of
from agentrl.gateway.serving.limits import SessionLimits, Strangers
from agentrl.types import JSON

_log = logging.getLogger(__name__)
_connections_log = logging.getLogger(f"{__name__}.connections")
# aiohttp logs a traceback for bytes that are no HTTP. Strangers could fill the log.
_connections_log.setLevel(logging.CRITICAL)

CLOSE_S = 5.0
_BACKLOG = 4096
"""Maximum number of connections that wait to be accepted. The system may have a lower limit (net.core.somaxconn)."""

_MESSAGES, _RESPONSES, _CHAT, _GEMINI = Messages(), Responses(), Chat(), Gemini()
_REPLIES: dict[str, Wire] = {"/v1/messages": _MESSAGES, "/v1/responses": _RESPONSES, "/v1/chat/completions": _CHAT}
_BEGINNINGS: dict[str, Wire] = {"/v1/messages": _MESSAGES, "/v1/responses": _RESPONSES, "/v1/chat/": _CHAT}
_COUNTS: dict[str, Wire] = {"/v1/messages/count_tokens": _MESSAGES, "/v1/responses/input_tokens": _RESPONSES}


_GEMINI_PATH = re.compile(r"/v1(?:beta|alpha)?/models/([^:]+):(generateContent|streamGenerateContent|countTokens)")
"""Pattern of paths of Google's API, which names the model and the method in the path."""

LimitedSession: TypeAlias = tuple[SessionHandler, SessionLimits]
"""A session with its limits."""


class WireServer:
    """Serves requests in the API formats of all vendors.

    `find` takes the key in the request's path ("" without a key) and the request, and returns the session. `find`
    raises RefusedError or DeniedError. `model` is the name in the list of models. A request may use any name.
    """

    def __init__(
        self, find: Callable[[str, web.BaseRequest], LimitedSession], model: str, *, body_bytes: int = BODY_BYTES
    ) -> None:
        self._find = find
        self._model = model
        self._body_bytes = body_bytes
        self._closing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._strangers = Strangers()
        connections = _Connections(self._answer, self._connection_lost, self._strangers, body_bytes)
        self._runner = web.ServerRunner(connections, shutdown_timeout=CLOSE_S)
        self._last: dict[RequestHandler, Exchange] = {}
        """The exchange of the last response on each connection, until the next request. A reset of the connection shows
        that the response was lost. With TLS a reset shows no loss, because TLS connections are often reset after an
        orderly end."""

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Listen at an address; port 0 takes a free port. Returns the port. Raises OSError."""
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port, ssl_context=tls, backlog=_BACKLOG)
        await site.start()
        return int(self._runner.addresses[-1][1])

    async def listen_at(self, socket: Path) -> None:
        """Also listen at a Unix socket. Call `listen` first. Raises OSError."""
        await web.UnixSite(self._runner, socket, backlog=_BACKLOG).start()

    async def close(self) -> None:
        """Send status 503 to all waiting requests, and close all connections."""
        if not self._closing.done():
            self._closing.set_result(None)
        await self._runner.cleanup()

    def _connection_lost(self, connection: RequestHandler, error: BaseException | None) -> None:
        exchange = self._last.pop(connection, None)
        if exchange is not None and error is not None:  # reset, so the client did not read everything
            exchange.lost()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        last = self._last.pop(request.protocol, None)
        if request.path == RESET_PATH:
            # Only a sandbox's relay reports a reset, at the Unix socket. A proxy may share a connection among clients.
            if last is not None and isinstance(request.protocol.sockname, str):
                last.lost()
            return web.Response()
        key, path = _split(request.path)
        wire = _wire(path, request)
        try:
            return await self._dispatch(request, key, path, wire)
        except RefusedError as refused:
            return json_response(wire.error(refused.status, str(refused), refused.kind), refused.status)
        except DeniedError as denied:
            return json_response(wire.error(denied.status, str(denied)), denied.status)
        except ConnectionError:  # no client reads the answer
            return web.Response()
        except Exception as exc:  # noqa: BLE001 - the boundary of a request: it must not harm other requests
            _log.exception("%s", path)  # without the key
            return json_response(wire.error(500, f"{type(exc).__name__}: {exc}"), 500)

    async def _dispatch(self, request: web.BaseRequest, key: str, path: str, wire: Wire) -> web.StreamResponse:
        method = request.method
        if path in ("/", "/health") and method in ("HEAD", "GET"):
            return web.Response()
        called = _GEMINI_PATH.fullmatch(path)
        if method == "POST" and (path in _REPLIES or (called and called[2] != "countTokens")):
            return await self._reply(request, key, path, wire)
        if method == "POST" and (path in _COUNTS or called):
            return await self._count(request, key, path, wire)
        if method in ("GET", "HEAD") and re.match("/v1(beta)?/models(/|$)", path):
            with self._session_of(key, request)[1].request():
                return json_response(_models(path, self._model, wire))
        if method == "POST" and path == "/v1/conversations":
            with self._session_of(key, request)[1].request():
                raw = await body_of(request, self._body_bytes)
                return json_response(conversation_of(reading.read_body(raw) if raw else {}))
        served = ", ".join((*_REPLIES, *_COUNTS, "/v1/models", "/v1beta/models/NAME:generateContent"))
        not_served = DeniedError(404, f"{method} {path} is not served here; these are: {served}")
        with suppress(RefusedError, DeniedError), _noting(self._session_of(key, request)[0], f"{method} {path}"):
            raise not_served
        raise not_served

    async def _reply(self, request: web.BaseRequest, key: str, path: str, wire: Wire) -> web.StreamResponse:
        session, limits = self._session_of(key, request)
        with limits.request():
            with _noting(session, f"POST {path}"):
                answer = await self._read(request, path, wire, session)
                branch_request = reading.in_branch(answer.request, request.headers)
            exchange = session.ask(branch_request)
            response = await respond(request, answer, exchange, self._closing)
        if request.transport is None:
            exchange.lost()
        elif not request.secure:
            self._last[request.protocol] = exchange
        return response

    async def _count(self, request: web.BaseRequest, key: str, path: str, wire: Wire) -> web.StreamResponse:
        session, limits = self._session_of(key, request)
        with limits.request(), _noting(session, f"POST {path}"):
            answer = await self._read(request, path, wire, session)
            tokens = await session.count(answer.request)
        if wire is _GEMINI:
            return json_response({"totalTokens": tokens})
        kind = {} if wire is _MESSAGES else {"object": "response.input_tokens"}
        return json_response({"input_tokens": tokens, **kind})

    async def _read(self, request: web.BaseRequest, path: str, wire: Wire, session: SessionHandler) -> ReplyWriter:
        """Read a request. The returned ReplyWriter writes the response. Raises RefusedError and DeniedError."""
        raw = await body_of(request, self._body_bytes)
        await admission()
        body = reading.read_body(raw)
        if (called := _GEMINI_PATH.fullmatch(path)) is not None:
            body = _with_path(body, called, sse=request.query.get("alt") == "sse")
        if session.reads_images:
            body = with_images(body, session.options)
        return wire.read(body, request.headers, _digest(path, raw), session.options)

    def _session_of(self, key: str, request: web.BaseRequest) -> LimitedSession:
        if self._closing.done():
            raise RefusedError("unavailable", "the gateway is closing; ask again later")
        limited = self._find(key, request)
        self._strangers.remove(request.protocol)
        return limited


class _Connections(web.Server):
    """aiohttp's server without routes. Reports the end of each connection."""

    def __init__(self, handler: Any, lost: Any, strangers: Strangers, body_bytes: int) -> None:
        super().__init__(
            handler,
            request_factory=partial(_request, body_bytes),
            handler_cancellation=True,  # reports at once that a client has disconnected
            access_log=None,
            logger=_connections_log,
            auto_decompress=False,  # else aiohttp refuses broken bodies, and the session does not learn of it
        )
        self._lost = lost
        self._strangers = strangers

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        self._strangers.opened(handler, transport)

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        self._strangers.remove(handler)
        self._lost(handler, exc)


def _request(
    most: int, message: Any, payload: Any, protocol: Any, writer: Any, task: asyncio.Task[None]
) -> web.BaseRequest:
    loop = asyncio.get_running_loop()
    return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=most)


@contextmanager
def _noting(session: SessionHandler, target: str) -> Iterator[None]:
    """A context manager that records refusals and failures inside in the session's log, because such a request never
    reaches the session."""
    try:
        yield
    except RefusedError as refused:
        session.note_refused(target, refused.status, str(refused), refused.kind)
        raise
    except DeniedError as denied:
        session.note_refused(target, denied.status, str(denied))
        raise
    except ConnectionError:  # the client has disconnected
        raise
    except Exception as exc:
        session.note_refused(target, 500, f"{type(exc).__name__}: {exc}")
        raise


def _with_path(body: Mapping[str, JSON], called: re.Match[str], *, sse: bool) -> Mapping[str, JSON]:
    """A body of Google's API with the fields `model`, `stream` and `array`, which are read from the path and the
    query."""
    inner = body.get("generateContentRequest")
    if isinstance(inner, dict):  # a count of a whole request
        body = inner
    streamed = called[2] == "streamGenerateContent"
    return {**body, "model": called[1], "stream": streamed and sse, "array": streamed and not sse}


def _split(path: str) -> tuple[str, str]:
    """Split a path into the session's key ("" without a key) and the rest."""
    if not path.startswith("/s/"):
        return "", path
    key, _, rest = path[3:].partition("/")
    return key, f"/{rest}"


def _wire(path: str, request: web.BaseRequest) -> Wire:
    """The wire that writes the response, even for an error. Headers decide only where several APIs share the path."""
    if path.startswith("/v1beta/") or _GEMINI_PATH.fullmatch(path):
        return _GEMINI
    for beginning, wire in _BEGINNINGS.items():
        if path.startswith(beginning):
            return wire
    if "x-goog-api-client" in request.headers:
        return _GEMINI
    return _MESSAGES if "anthropic-version" in request.headers else _CHAT


def keys(key: str, request: web.BaseRequest) -> Iterator[str]:
    """The keys in a request: `key` from the path, and the keys in the vendors' headers and parameters."""
    headers = request.headers
    scheme, _, token = headers.get("Authorization", "").partition(" ")
    bearer = token.strip() if scheme.lower() == "bearer" else ""
    others = (headers.get("x-api-key"), headers.get("x-goog-api-key"), request.query.get("key"))
    yield from filter(None, (key, bearer, *others))


def _digest(path: str, raw: bytes) -> str:
    return hashlib.blake2b(path.encode() + b"\n" + raw, digest_size=16).hexdigest()


def _models(path: str, listed: str, wire: Wire) -> JSON:
    name = path.partition("/models")[2].strip("/")
    if wire is _GEMINI:
        methods = ["generateContent", "countTokens"]
        entry = {"name": f"models/{name or listed}", "supportedGenerationMethods": methods}
        return entry if name else {"models": [entry]}
    model: dict[str, JSON] = {"id": name or listed}
    if wire is _MESSAGES:
        model |= {"type": "model", "display_name": model["id"], "created_at": "2026-01-01T00:00:00Z"}
        model |= {"lifecycle": "active"}
        page = {"has_more": False, "first_id": listed, "last_id": listed}
    else:
        model |= {"object": "model", "created": 0, "owned_by": "agentrl"}
        page = {"object": "list"}
    return model if name else {"data": [model], **page}
