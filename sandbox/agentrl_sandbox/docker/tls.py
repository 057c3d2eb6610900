"""A local socket leading to an engine over TLS.

The end of a command's stdin closes one direction of the connection. asyncio's TLS can only close both. Here, one
direction ends as specified by TLS: with a close_notify, after which the other side still sends (RFC 8446, section 6.1).
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import ssl
import tempfile
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import urlsplit

from agentrl.errors import SandboxError

T = TypeVar("T")

_PIECE = 64 << 10
_CONNECT_S = 20.0


class TlsTunnel:
    """The way to the engine of an address `tcp://HOST:PORT`."""

    def __init__(self, address: str, context: ssl.SSLContext) -> None:
        parts = urlsplit(address)
        self._address, self._host, self._port = address, parts.hostname or "", parts.port or 2376
        self._context = context
        self._folder = tempfile.mkdtemp(prefix="agentrl-tls-")  # for this user only
        self.socket = f"{self._folder}/engine.sock"
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Raises SandboxError if there is no connection, or if a certificate is refused. Safe to call again."""
        if self._server is not None:
            return
        try:
            async with asyncio.timeout(_CONNECT_S):
                connection = await _TlsConnection.to(self._host, self._port, self._context)
                try:
                    await connection.send(b"GET /_ping HTTP/1.1\r\nHost: docker\r\nConnection: close\r\n\r\n")
                    await connection.receive()  # only now is a refused certificate of ours reported
                finally:
                    connection.close()
        except (OSError, TimeoutError) as exc:  # ssl.SSLError is one
            raise SandboxError(f"{self._address} cannot be reached: {exc or 'no answer in time'}") from exc
        self._server = await asyncio.start_unix_server(self._accept, self.socket)

    async def close(self) -> None:
        """End all connections."""
        if self._server is not None:
            self._server.close()
        for task in self._open:
            task.cancel()
        if self._open:
            await asyncio.wait(self._open)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer), name="tls tunnel")
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection. A failure ends the connection, and the client reports the failed request."""
        try:
            async with asyncio.timeout(_CONNECT_S):
                connection = await _TlsConnection.to(self._host, self._port, self._context)
        except (OSError, TimeoutError):
            writer.transport.abort()
            return
        sending = asyncio.create_task(_send_all(reader, connection))
        try:
            with contextlib.suppress(OSError):
                while piece := await connection.receive():
                    writer.write(piece)
                    await writer.drain()
        finally:
            sending.cancel()
            await asyncio.wait([sending])
            writer.close()
            connection.close()


async def _send_all(reader: asyncio.StreamReader, connection: _TlsConnection) -> None:
    with contextlib.suppress(OSError):
        while piece := await reader.read(_PIECE):
            await connection.send(piece)
        await connection.send_end()


class _TlsConnection:
    """TLS over a plain connection, in memory: so each direction can end alone."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, context: ssl.SSLContext
    ) -> None:
        self._reader, self._writer = reader, writer
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_hostname=host)
        self._ending, self._drained = False, False

    @classmethod
    async def to(cls, host: str, port: int, context: ssl.SSLContext) -> _TlsConnection:
        """A connection after the handshake. Raises OSError, including ssl.SSLError."""
        self = cls(*await asyncio.open_connection(host, port), host, context)
        try:
            await self._done(self._tls.do_handshake)
        except BaseException:
            self.close()
            raise
        return self

    async def send(self, data: bytes) -> None:
        self._tls.write(data)  # an empty output buffer in memory takes all data
        await self._flush()

    async def send_end(self) -> None:
        """No more is sent; the other side still may."""
        self._ending = True
        self._end_if_drained()
        await self._flush()

    def _end_if_drained(self) -> None:
        """Write the close_notify once all received data has been read. OpenSSL also looks for the other side's
        close_notify, and would lose unread data.
        """
        if self._ending and self._drained:
            self._ending = False
            with contextlib.suppress(ssl.SSLWantReadError):
                self._tls.unwrap()

    async def receive(self) -> bytes:
        """The next piece; empty at the end."""
        try:
            return await self._done(lambda: self._tls.read(_PIECE))
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            return b""

    def close(self) -> None:
        self._writer.close()

    async def _done(self, step: Callable[[], T]) -> T:
        """A step's result, once the other side has sent enough data."""
        while True:
            try:
                result = step()
            except ssl.SSLWantReadError:
                self._drained = True
                self._end_if_drained()
                await self._flush()
                piece = await self._reader.read(_PIECE)
                self._drained = False
                if piece:
                    self._in.write(piece)
                else:
                    self._in.write_eof()
            else:
                await self._flush()
                return result

    async def _flush(self) -> None:
        if self._out.pending:
            self._writer.write(self._out.read())
            await self._writer.drain()
