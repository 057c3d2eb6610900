"""A proxy before the gateway that does to chosen requests what networks and servers do."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import ClientSession, ClientTimeout, TCPConnector, web

_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER on, 0 seconds: closing resets the connection."""
_HOP = {"transfer-encoding", "connection", "content-length", "host", "keep-alive", "content-encoding"}


@dataclass(frozen=True, slots=True)
class Cut:
    """The connection is reset once the answer so far holds `mark`."""

    mark: bytes


@dataclass(frozen=True, slots=True)
class Dropped:
    """The connection is reset before the first byte of the answer, which the gateway has begun to send."""


@dataclass(frozen=True, slots=True)
class Status:
    """The request is answered so, and the gateway never sees it."""

    code: int


@dataclass(frozen=True, slots=True)
class Stall:
    """Nothing is heard for so long before the first byte."""

    seconds: float


Fault = Cut | Dropped | Status | Stall


@dataclass
class Seen:
    """One request that asked for a reply."""

    body: bytes
    headers: Mapping[str, str]
    status: int = 0
    fault: Fault | None = None


@dataclass
class Proxy:
    """`faults`: what happens to a request, by its number (from 1) among those that ask for a reply."""

    target: str
    faults: Mapping[int, Fault] = field(default_factory=dict)
    always: Fault | None = None
    seen: list[Seen] = field(default_factory=list)
    url: str = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        fault = None
        seen = Seen(body, dict(request.headers))
        if request.method == "POST" and "count_tokens" not in request.path:
            self.seen.append(seen)
            seen.fault = fault = self.faults.get(len(self.seen), self.always)
        if isinstance(fault, Status):
            seen.status = fault.code
            return web.json_response(_said(request.path, fault.code), status=fault.code)
        headers = {key: value for key, value in request.headers.items() if key.lower() not in _HOP}
        async with (
            ClientSession(timeout=ClientTimeout(total=None), connector=TCPConnector(force_close=True)) as session,
            session.request(
                request.method, f"{self.target}{request.path_qs}", data=body, headers=headers, auto_decompress=False
            ) as answer,
        ):
            seen.status = answer.status
            return await self._pass_on(request, answer, fault)

    async def _pass_on(self, request: web.Request, answer: Any, fault: Fault | None) -> web.StreamResponse:
        headers = {key: value for key, value in answer.headers.items() if key.lower() not in _HOP}
        out = web.StreamResponse(status=answer.status, headers=headers)
        if isinstance(fault, Stall):
            await asyncio.sleep(fault.seconds)
        if isinstance(fault, Dropped):
            await answer.content.readany()
            _reset(answer.connection.transport if answer.connection else None)
            _reset(request.transport)
            raise ConnectionResetError
        await out.prepare(request)
        so_far = b""
        async for piece in answer.content.iter_any():
            so_far += piece
            if isinstance(fault, Cut) and fault.mark in so_far:
                end = len(piece) - (len(so_far) - so_far.index(fault.mark) - len(fault.mark))
                await out.write(piece[: max(end, 0)] + b"\n\n")
                await asyncio.sleep(0.2)  # a reset overtakes what the client has not read
                _reset(answer.connection.transport if answer.connection else None)
                _reset(request.transport)
                raise ConnectionResetError
            await out.write(piece)
        await out.write_eof()
        return out


def _reset(transport: Any) -> None:
    if transport is not None:
        own = transport.get_extra_info("socket")
        if own is not None:
            own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        transport.abort()


def _said(path: str, code: int) -> Mapping[str, object]:
    kind = "overloaded_error" if code == 529 else "server_error"
    error = {"type": kind, "message": f"the proxy says {code}", "code": None}
    return {"type": "error", "error": error} if path.endswith("/messages") else {"error": error}


@asynccontextmanager
async def proxied(target: str, faults: Mapping[int, Fault] | Sequence[Fault] = (), **more: Any) -> AsyncIterator[Proxy]:
    """A proxy at a port of its own."""
    if not isinstance(faults, Mapping):
        faults = dict(enumerate(faults, 1))
    proxy = Proxy(target, faults, **more)
    app = web.Application(client_max_size=1 << 30)
    app.router.add_route("*", "/{tail:.*}", proxy.handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    proxy.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield proxy
    finally:
        await runner.cleanup()
