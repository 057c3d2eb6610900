"""An engine whose weights may change during episodes: running generations are aborted, and then continued."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Unpack

from agentrl._util.concurrency import uncounted
from agentrl.engine.base import AsyncClosing, RequestFields, TrainedEngine, ask, forget
from agentrl.types import Generation, SamplingParams

_AGAIN_S = 1.0
"""Seconds until running requests are aborted once more. The first abort may have arrived before a request."""


class PausableEngine(AsyncClosing):
    """Ensures the condition of `TrainedEngine.update` (no running requests) while other tasks generate.

    At an update the running requests are aborted. Each request returns the tokens so far, from the old weights, and new
    requests wait. An episode with the hook `EpisodeHooks.aborted` then continues the turn with the new weights, so each
    generation has a single weight version. The prefix is computed anew, because no engine stores prefixes over an
    update.

    `engine` is closed with the wrapper. A PausableEngine has no lockstep: the waves of episodes that come and go cannot
    repeat.
    """

    own_weights = True

    def __init__(self, engine: TrainedEngine) -> None:
        self.engine = engine
        self.requests = 0
        """The number of running requests."""
        self._open, self._idle = asyncio.Event(), asyncio.Event()
        self._open.set()
        self._idle.set()

    async def generate(
        self, input_ids: Sequence[int], sampling_params: SamplingParams, **request: Unpack[RequestFields]
    ) -> Generation:
        """Continue `input_ids`; see `Engine.generate`. Waits while the weights change."""
        with uncounted():
            await self._enter()
        try:
            return await ask(self.engine, input_ids, sampling_params, request)
        finally:
            self.requests -= 1
            if not self.requests:
                self._idle.set()

    async def _enter(self) -> None:
        """Wait until the weights do not change."""
        while not self._open.is_set():
            await self._open.wait()
        self.requests += 1
        self._idle.clear()

    @property
    def takes_images(self) -> bool:
        return getattr(self.engine, "takes_images", False)

    @property
    def takes_grammars(self) -> bool:
        return getattr(self.engine, "takes_grammars", False)

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """While the context is open, no request runs. Raises EngineError if the engine cannot abort."""
        self._open.clear()
        try:
            while self.requests:
                await self.engine.abort()
                try:
                    async with asyncio.timeout(_AGAIN_S):
                        await self._idle.wait()
                except TimeoutError:
                    continue
            yield
        finally:
            self._open.set()

    async def update(self, model: Any, version: str) -> None:
        async with self.paused():
            await self.engine.update(model, version)

    async def abort(self, rid: str | None = None) -> None:
        await self.engine.abort(rid)

    def forget(self, session_id: str) -> None:
        forget(self.engine, session_id)

    async def context_length(self) -> int:
        return await self.engine.context_length()

    async def sleep(self) -> None:
        """Do nothing: episodes are played at any time."""

    async def wake(self) -> None:
        await self.engine.wake()

    async def close(self) -> None:
        await self.engine.close()
