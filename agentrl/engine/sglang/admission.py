"""When the server's requests start: at once, or after a pause or a change of the weights."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from agentrl.engine.base import Engine
from agentrl.errors import RequestError

_ABORT_AGAIN_S = 0.2
"""Seconds between two aborts of requests that have to end."""


class Admission:
    """The requests of a server. A request that arrives during a pause or during a change of the weights waits."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._paused = self._changing = False
        self._change = asyncio.Lock()
        self._ended = asyncio.Event()
        self.tokens: dict[str, int] = {}
        """Request id -> the number of the request's prompt tokens."""
        self._waiting: dict[str, asyncio.Future[bool]] = {}
        """Request id -> a future. The result True starts the request, False aborts it."""

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self.tokens) - len(self._waiting)

    @asynccontextmanager
    async def request(self, rid: str, tokens: int) -> AsyncIterator[bool]:
        """Open the context when the request may start. Yields False for a request that was aborted before. Raises
        RequestError for an id in use."""
        if rid in self.tokens:
            raise RequestError(f"Duplicate request ID detected: {rid}")
        self.tokens[rid] = tokens
        try:
            yield await self._turn(rid)
        finally:
            del self.tokens[rid]
            self._ended.set()

    async def _turn(self, rid: str) -> bool:
        while self._paused or self._changing:
            self._waiting[rid] = turn = asyncio.get_running_loop().create_future()
            try:
                if not await turn:
                    return False
            finally:
                del self._waiting[rid]
        return True

    async def abort(self, rid: str | None = None) -> None:
        """Abort a request, or all requests. Running requests end after their current step."""
        for name, turn in self._waiting.items():
            if rid in (None, name) and not turn.done():
                turn.set_result(False)
        await self._engine.abort(rid)

    async def pause(self) -> None:
        """Let new requests wait, abort the running requests, and wait for their end."""
        self._paused = True
        await self._drain(abort=True)

    def proceed(self) -> None:
        """Start the waiting requests, unless the weights are changing."""
        self._paused = False
        self._start()

    @asynccontextmanager
    async def changing(self, *, abort: bool = False) -> AsyncIterator[None]:
        """Wait for the end of the running requests, and let new requests wait while the context is open. So no request
        sees two updates, as in SGLang. `abort`: the running requests are aborted."""
        async with self._change:
            self._changing = True
            try:
                await self._drain(abort=abort)
                yield
            finally:
                self._changing = False
                self._start()

    async def _drain(self, *, abort: bool) -> None:
        while self.running:
            self._ended.clear()
            if abort:
                await self._engine.abort()
            with suppress(TimeoutError):  # a request that had not reached the engine is aborted in the next round
                async with asyncio.timeout(_ABORT_AGAIN_S if abort else None):
                    await self._ended.wait()

    def _start(self) -> None:
        if not self._paused and not self._changing:
            for turn in self._waiting.values():
                if not turn.done():
                    turn.set_result(True)
