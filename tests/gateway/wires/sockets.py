"""Requests written to a socket by hand."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import asynccontextmanager

ASK = {"model": "m", "messages": [{"role": "user", "content": "Go."}]}


BODIES = {
    "/v1/messages": ASK | {"max_tokens": 9},
    "/v1/chat/completions": ASK,
    "/v1/responses": {"model": "m", "input": "Go."},
}


@asynccontextmanager
async def connected(gateway, path="/v1/chat/completions", key="key-1", receive_bytes=None, **body):
    """A bare connection on which one request has been sent."""
    plain = socket.socket()
    if receive_bytes is not None:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    plain.setblocking(False)
    host, port = gateway.url.removeprefix("http://").split(":")
    await asyncio.get_running_loop().sock_connect(plain, (host, int(port)))
    raw = json.dumps(BODIES[path] | body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nContent-Length: {len(raw)}\r\n\r\n"
    await asyncio.get_running_loop().sock_sendall(plain, head.encode() + raw)
    try:
        yield plain
    finally:
        plain.close()


async def read_until(plain, mark):
    read = b""
    while mark not in read:
        part = await asyncio.get_running_loop().sock_recv(plain, 65536)
        assert part, read
        read += part
    return read


async def asked(session, count=1):
    while len(session.exchanges) < count:
        session.asked.clear()
        await session.asked.wait()
    return session.exchanges[count - 1]
