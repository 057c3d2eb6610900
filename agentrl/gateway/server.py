"""The gateway's HTTP server: many sessions behind one address, each known by its key."""

from __future__ import annotations

import asyncio
import atexit
import hashlib
import logging
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol, Self

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from agentrl.gateway.answering import json_response, respond
from agentrl.gateway.request import Asked, Exchange, RefusedError
from agentrl.gateway.wires import reading
from agentrl.gateway.wires.base import Wire
from agentrl.gateway.wires.chat import Chat
from agentrl.gateway.wires.messages import Messages
from agentrl.gateway.wires.responses import Responses
from agentrl.types import JSON

_log = logging.getLogger(__name__)

_BODY_BYTES = 64 << 20
_CLOSE_S = 5.0
MODEL = "agentrl"
"""The name under which the model is listed. A request may name any."""

_MESSAGES, _RESPONSES, _CHAT = Messages(), Responses(), Chat()
_REPLIES: dict[str, Wire] = {"/v1/messages": _MESSAGES, "/v1/responses": _RESPONSES, "/v1/chat/completions": _CHAT}
_COUNTS: dict[str, Wire] = {"/v1/messages/count_tokens": _MESSAGES, "/v1/responses/input_tokens": _RESPONSES}


class Keyed(Asked, Protocol):
    """A session that a server finds by its key."""

    @property
    def key(self) -> str:
        """What a request must bring."""
        ...


class Gateway:
    """Serves sessions over three wires at a port of this machine, and at a Unix socket for sandboxes.

        async with Gateway() as gateway:
            gateway.add(session)  # a client reaches it at gateway.url, with the session's key

    Entering raises OSError if it cannot listen.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self._host = host
        self._port = port
        self._sessions: dict[str, Asked] = {}
        self._ended: set[str] = set()
        self._last: dict[RequestHandler, Exchange] = {}
        """The last answer sent on each connection, until another request comes. A reset of the connection loses it."""

    async def __aenter__(self) -> Self:
        self._closing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._folder = Path(tempfile.mkdtemp(prefix="agentrl-gateway-"))
        server = _Connections(self._answer, self._connection_lost)
        self._runner = web.ServerRunner(server, shutdown_timeout=_CLOSE_S)
        try:
            await self._runner.setup()
            await web.TCPSite(self._runner, self._host, self._port).start()
            await web.UnixSite(self._runner, self.socket_path).start()
            self.socket_path.chmod(0o666)  # a sandbox mounts it for a user of its own; the folder keeps others out
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        if not self._closing.done():
            self._closing.set_result(None)
        await self._runner.cleanup()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def url(self) -> str:
        """Without a path: `http://127.0.0.1:PORT`. Clients of OpenAI's APIs need `/v1` behind it."""
        port = next(address[1] for address in self._runner.addresses if isinstance(address, tuple))
        return f"http://{self._host}:{port}"

    @property
    def socket_path(self) -> Path:
        """The Unix socket. Any user may connect who can see it."""
        return self._folder / "gateway.sock"

    def add(self, session: Keyed) -> None:
        """Serve a session from now on."""
        self._ended.discard(session.key)
        self._sessions[session.key] = session

    def remove(self, session: Keyed) -> None:
        """End a session: from now on its key is refused with 400."""
        if self._sessions.pop(session.key, None) is not None:
            self._ended.add(session.key)

    def _connection_lost(self, connection: RequestHandler, error: BaseException | None) -> None:
        exchange = self._last.pop(connection, None)
        if exchange is not None and error is not None:  # reset, so there was something that the client did not read
            exchange.lost()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        self._last.pop(request.protocol, None)
        key, path = _split(request.path)
        wire = _wire(path, request)
        try:
            return await self._dispatch(request, key, path, wire)
        except RefusedError as refused:
            return json_response(wire.error(refused.status, str(refused), refused.kind), refused.status)
        except web.HTTPRequestEntityTooLarge:
            return json_response(wire.error(413, f"the body has more than {_BODY_BYTES} bytes"), 413)
        except ConnectionError:  # nobody reads the answer
            return web.Response()
        except Exception as exc:  # noqa: BLE001 - the boundary of a request: it must not harm other requests
            _log.exception("%s", request.path)
            return json_response(wire.error(500, f"{type(exc).__name__}: {exc}"), 500)

    async def _dispatch(self, request: web.BaseRequest, key: str, path: str, wire: Wire) -> web.StreamResponse:
        method = request.method
        if path == "/" and method in ("HEAD", "GET"):
            return web.Response()
        if path == "/v1/models" or path.startswith("/v1/models/"):
            self._session(key, request)
            return json_response(_models(path, wire is _MESSAGES))
        if method == "POST" and path in _REPLIES:
            return await self._reply(request, key, path, wire)
        if method == "POST" and path in _COUNTS:
            return await self._count(request, key, path, wire)
        served = ", ".join((*_REPLIES, *_COUNTS, "/v1/models"))
        return json_response(wire.error(404, f"{method} {path} is not served here; these are: {served}"), 404)

    async def _reply(self, request: web.BaseRequest, key: str, path: str, wire: Wire) -> web.StreamResponse:
        session = self._session(key, request)
        raw = await request.read()
        answer = wire.read(reading.read_body(raw), request.headers, _digest(path, raw))
        exchange = session.ask(answer.request)
        response = await respond(request, answer, exchange, self._closing)
        self._last[request.protocol] = exchange
        return response

    async def _count(self, request: web.BaseRequest, key: str, path: str, wire: Wire) -> web.StreamResponse:
        session = self._session(key, request)
        raw = await request.read()
        answer = wire.read(reading.read_body(raw), request.headers, _digest(path, raw))
        kind = {} if wire is _MESSAGES else {"object": "response.input_tokens"}
        return json_response({"input_tokens": session.count(answer.request), **kind})

    def _session(self, key: str, request: web.BaseRequest) -> Asked:
        """Raises RefusedError with status 400 for an unknown key: it is the only one on which all clients end."""
        if self._closing.done():
            raise RefusedError("unavailable", "the gateway is closing; ask again later")
        given = list(_keys(key, request))
        for one in given:
            if one in self._sessions:
                return self._sessions[one]
        if self._ended.intersection(given):
            raise RefusedError("closed", "this session has ended; the agent should end too")
        raise RefusedError(
            "closed", "no session has this key; send the session's own as Bearer token, as x-api-key or in /s/KEY/v1"
        )


class _Connections(web.Server):
    """aiohttp's server without routes. It tells how each connection ends."""

    def __init__(self, handler: Any, lost: Any) -> None:
        # Cancelling the handler tells at once that a client has gone.
        super().__init__(handler, request_factory=_request, handler_cancellation=True, access_log=None)
        self._lost = lost

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        self._lost(handler, exc)


def _request(message: Any, payload: Any, protocol: Any, writer: Any, task: asyncio.Task[None]) -> web.BaseRequest:
    loop = asyncio.get_running_loop()
    return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=_BODY_BYTES)


def _split(path: str) -> tuple[str, str]:
    """The key in a path, and the rest of it."""
    if not path.startswith("/s/"):
        return "", path
    key, _, rest = path[3:].partition("/")
    return key, f"/{rest}"


def _wire(path: str, request: web.BaseRequest) -> Wire:
    """The wire whose words an answer has."""
    if path.startswith("/v1/messages") or "anthropic-version" in request.headers:
        return _MESSAGES
    return _RESPONSES if path.startswith("/v1/responses") else _CHAT


def _keys(key: str, request: web.BaseRequest) -> Iterator[str]:
    headers = request.headers
    scheme, _, token = headers.get("Authorization", "").partition(" ")
    bearer = token.strip() if scheme.lower() == "bearer" else ""
    yield from filter(None, (key, bearer, headers.get("x-api-key"), headers.get("x-goog-api-key")))


def _digest(path: str, raw: bytes) -> str:
    return hashlib.blake2b(path.encode() + b"\n" + raw, digest_size=16).hexdigest()


def _models(path: str, anthropic: bool) -> JSON:
    name = path.removeprefix("/v1/models").strip("/")
    model: dict[str, JSON] = {"id": name or MODEL}
    if anthropic:
        model |= {"type": "model", "display_name": model["id"], "created_at": "2026-01-01T00:00:00Z"}
        model |= {"lifecycle": "active"}
        page = {"has_more": False, "first_id": MODEL, "last_id": MODEL}
    else:
        model |= {"object": "model", "created": 0, "owned_by": "agentrl"}
        page = {"object": "list"}
    return model if name else {"data": [model], **page}


_gateways: dict[asyncio.AbstractEventLoop, asyncio.Task[None]] = {}
_ready: dict[asyncio.AbstractEventLoop, asyncio.Future[Gateway]] = {}


async def loop_gateway() -> Gateway:
    """The one gateway of the running event loop. It starts on first use, and closes with the loop.

    Raises OSError if it cannot listen.
    """
    loop = asyncio.get_running_loop()
    if loop not in _ready:
        _ready[loop] = loop.create_future()
        _gateways[loop] = loop.create_task(_keep(_ready[loop]), name="agentrl gateway")
    return await asyncio.shield(_ready[loop])


async def _keep(ready: asyncio.Future[Gateway]) -> None:
    """Serve until the loop ends. A loop cancels its tasks then: it is the only stop hook."""
    loop = asyncio.get_running_loop()
    try:
        async with Gateway() as gateway:
            ready.set_result(gateway)
            await asyncio.Event().wait()
    except OSError as exc:
        ready.set_exception(exc)
    finally:
        del _ready[loop], _gateways[loop]


@atexit.register
def _close_running_loops() -> None:
    """Close the gateways of loops in daemon threads, which are never shut down."""
    for loop, task in list(_gateways.items()):
        if loop.is_running():
            try:
                asyncio.run_coroutine_threadsafe(_end(task), loop).result(2 * _CLOSE_S)
            except Exception:  # noqa: BLE001 - the end of the process: the other loops must be closed too
                _log.warning("closing a gateway failed", exc_info=True)


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait((task,))
