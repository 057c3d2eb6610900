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
        if isinstance(fault, Cut | Dropped):
            return await self._break(request, headers, body, fault)
        async with (
            ClientSession(timeout=ClientTimeout(total=None), connector=TCPConnector(force_close=True)) as session,
            session.request(
                request.method, f"{self.target}{request.path_qs}", data=body, headers=headers, auto_decompress=False
            ) as answer,
        ):
            seen.status = answer.status
            if isinstance(fault, Stall):
                await asyncio.sleep(fault.seconds)
            kept = {key: value for key, value in answer.headers.items() if key.lower() not in _HOP}
            out = web.StreamResponse(status=answer.status, headers=kept)
            await out.prepare(request)
            async for piece in answer.content.iter_any():
                await out.write(piece)
            await out.write_eof()
            return out

    async def _break(
        self, request: web.Request, headers: Mapping[str, str], body: bytes, fault: Cut | Dropped
    ) -> web.StreamResponse:
        """Read the answer's bytes only up to the fault, then reset both connections."""
        assert request.transport is not None
        given = {**headers, "Host": "gateway", "Content-Length": str(len(body))}
        lines = [f"{request.method} {request.path_qs} HTTP/1.1", *(f"{key}: {value}" for key, value in given.items())]
        loop, (host, port) = asyncio.get_running_loop(), self.target.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as there:
            there.setblocking(False)
            there.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            await loop.sock_sendall(there, "\r\n".join([*lines, "", ""]).encode() + body)
            so_far = await loop.sock_recv(there, 1)
            if isinstance(fault, Cut):
                while not _ends(so_far, fault.mark):
                    piece = await loop.sock_recv(there, 1)
                    assert piece, f"the answer has no {fault.mark!r}"
                    so_far += piece
                request.transport.write(so_far)
                await asyncio.sleep(0.2)  # a reset overtakes what the client has not read
        own = request.transport.get_extra_info("socket")
        own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        request.transport.abort()
        return web.Response()


def _ends(so_far: bytes, mark: bytes) -> bool:
    """The bytes end with the event that holds the mark, or for an empty one with the headers."""
    rest = so_far.partition(b"\r\n\r\n")[2]
    return so_far.endswith(b"\r\n\r\n") if not mark else mark in rest and so_far.endswith(b"\n\n")


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
