"""Messages over a socket: a pickled value after the value's length in 8 bytes. Both ends are our own processes."""

from __future__ import annotations

import asyncio
import pickle
import socket
from typing import Any

_SIZE = 8


class MessageStream:
    """One end of the connection between a driver and a worker, in an event loop.

    Writing never waits: otherwise a driver and a worker that both write large messages would wait for each other.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def over(cls, end: socket.socket) -> MessageStream:
        return cls(*await asyncio.open_connection(sock=end, limit=1 << 20))

    def send(self, message: Any) -> None:
        """Send a message. Has no effect if the other end is closed: the reader learns of the end."""
        if self._writer.is_closing():
            return
        body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        self._writer.writelines((len(body).to_bytes(_SIZE), body))

    async def receive(self) -> Any:
        """The next message. Raises EOFError if the other end is closed."""
        try:
            length = int.from_bytes(await self._reader.readexactly(_SIZE))
            return pickle.loads(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, OSError) as exc:
            raise EOFError("the other end is closed") from exc

    def close(self) -> None:
        self._writer.close()
