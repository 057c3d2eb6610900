"""Renderers, Envs and engines that all episodes of an event loop share. Each object is made on first use, and closed
with the loop.

slime only calls `adapt`, and has no hooks for start and stop. So 256 first calls may arrive at once. Training and
evaluation may run on two event loops of a process at the same time.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures.thread  # noqa: F401 - before `_register_atexit` below
import json
import logging
import threading
from collections.abc import Awaitable, Callable, Hashable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import cache
from typing import TYPE_CHECKING, TypeVar, cast

from agentrl._util.per_loop import PerLoop
from agentrl.engine.base import RETRY_S
from agentrl.env.factory import EnvFactory
from agentrl.episode.host_config import HostedConfig
from agentrl.episode.options import EpisodeOptions, SpecialTokens
from agentrl.episode.parking import Parking
from agentrl.render.base import Renderer
from agentrl.types import JSON

if TYPE_CHECKING:
    from agentrl.engine.sglang.client import SGLangEngine
    from agentrl.engine.sglang.connections import Connections

T = TypeVar("T")
log = logging.getLogger("agentrl")

_CONNECTIONS = 256
_CLOSE_S = 30.0
"""Maximum number of seconds for closing the resources of a loop at the end of the process."""


class LoopResources:
    """Renderers, Envs, engines and parked episodes of one event loop."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self._tasks: dict[Hashable, asyncio.Task[object]] = {}
        self._parkings: dict[tuple[str | None, float], Parking] = {}
        self._keeper = asyncio.create_task(self._keep())
        self._keeper.add_done_callback(lambda keeper: self._leave(keeper.get_loop()))

    async def renderer(
        self,
        model: str,
        template: str | None,
        template_kwargs: Mapping[str, JSON],
        *,
        trust_remote_code: bool = False,
        special_tokens: SpecialTokens = "keep",
    ) -> Renderer:
        """The renderer of a model. `trust_remote_code`: the tokenizer's own code may run here, because the host has run
        it, too."""
        key = (model, template, json.dumps(template_kwargs, sort_keys=True), trust_remote_code, special_tokens)
        return await self._once(("renderer", *key), lambda: asyncio.to_thread(load_renderer_once, *key))

    async def envs(self, path: str, config: HostedConfig) -> EnvFactory:
        key = ("envs", path, json.dumps(config.env_config_of(path), sort_keys=True, default=str))
        return await self.entered(key, lambda: config.env_factory(path))

    async def entered(self, key: Hashable, make: Callable[[], AbstractAsyncContextManager[T]]) -> T:
        """The value of the context manager for a key. On first use, `make` makes the manager, which is entered at once
        and exited at the loop's end."""
        return await self._once(key, lambda: self._stack.enter_async_context(make()))

    async def engine(
        self,
        url: str,
        extra: Mapping[str, JSON],
        *,
        model: str = "",
        retry_s: float = RETRY_S,
        stopped: Callable[[], bool] | None = None,
    ) -> SGLangEngine:
        """An engine at a URL. `extra` is added to each request. `retry_s` is the number of seconds for retries (see
        SGLangEngine).

        `model` is the folder of the served model: token ids outside of its vocabulary are errors. `stopped` returns the
        host's abort flag, which is the same for all episodes.
        """

        async def make() -> SGLangEngine:
            from agentrl.engine.sglang import SGLangEngine  # aiohttp is imported only on use
            from agentrl.models.hub import vocabulary_size

            vocab_size = vocabulary_size(model) if model else None
            engine = SGLangEngine(url, extra=extra, vocab_size=vocab_size, retry_s=retry_s)
            engine.stopped = stopped or engine.stopped
            self._stack.push_async_callback(engine.close)
            return engine

        return await self._once(("engine", url, json.dumps(extra, sort_keys=True), model, retry_s), make)

    async def connections(self, url: str) -> Connections:
        """HTTP connections to a server, for requests outside of any episode."""

        async def make() -> Connections:
            from agentrl.engine.sglang.connections import Address, Connections

            connections = Connections(Address.read(url), limit=_CONNECTIONS)
            self._stack.push_async_callback(connections.close)
            return connections

        return await self._once(("connections", url), make)

    def parking(self, folder: str | None, dead_s: float) -> Parking:
        if (folder, dead_s) not in self._parkings:
            self._parkings[folder, dead_s] = Parking(folder, dead_s=dead_s)
        return self._parkings[folder, dead_s]

    async def _once(self, key: Hashable, make: Callable[[], Awaitable[T]]) -> T:
        """The value of a key, made by the first caller's `make` for all callers. If `make` fails, all waiting callers
        get the error, and the next call tries again."""
        if key not in self._tasks:
            task = asyncio.create_task(_run(make))
            task.add_done_callback(lambda done: self._forget_failure(key, done))
            self._tasks[key] = task
        # Shielded, because the first caller may be cancelled alone.
        return cast(T, await asyncio.shield(self._tasks[key]))

    def _forget_failure(self, key: Hashable, task: asyncio.Task[object]) -> None:
        if task.cancelled() or task.exception() is not None:
            del self._tasks[key]

    async def close(self) -> None:
        self._keeper.cancel()
        await asyncio.wait([self._keeper])
        if not self._keeper.cancelled():  # cancelled before the beginning: no value was made
            self._keeper.result()

    async def _keep(self) -> None:
        """Wait until the loop ends, then close all resources. The cancellation of this task is the only sign of the
        end."""
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self._leave(asyncio.get_running_loop())
            for parking in self._parkings.values():  # first: open Envs need the other resources
                await parking.close()
            await self._stack.aclose()

    def _leave(self, loop: asyncio.AbstractEventLoop) -> None:
        if loops.get(loop) is self:
            del loops[loop]


loops: PerLoop[LoopResources] = PerLoop()


def loop_resources() -> LoopResources:
    """The resources of the running event loop."""
    return loops.here(LoopResources)


async def _run(make: Callable[[], Awaitable[T]]) -> T:
    return await make()


@atexit.register
def _close_running_loops() -> None:
    """Close the resources of all running loops at the end of the process: the loops of slime and of TRL run in daemon
    threads, which are never shut down."""
    for loop, here in list(loops.items()):
        if loop.is_running():
            closing = asyncio.run_coroutine_threadsafe(here.close(), loop)
            try:
                closing.result(_CLOSE_S)
            except Exception:  # the end of the process: the other loops must be closed too
                log.warning("closing what episodes shared failed", exc_info=True)


# `atexit` comes too late for what closes in a thread, such as a sandbox: Python ends its pools of threads before. The
# latest registration is called first.
getattr(threading, "_register_atexit", atexit.register)(_close_running_loops)


_loading = threading.Lock()


def load_renderer_once(
    model: str,
    template: str | None,
    template_kwargs: str,
    trust_remote_code: bool,
    special_tokens: SpecialTokens = "keep",
) -> Renderer:
    """A renderer, which is immutable, for all loops. A lock prevents a second certification of the same template."""
    with _loading:
        renderer = load_shared_renderer(model, template, template_kwargs, trust_remote_code)
        return EpisodeOptions(special_tokens=special_tokens).renderer(renderer)


@cache
def load_shared_renderer(model: str, template: str | None, template_kwargs: str, trust_remote_code: bool) -> Renderer:
    from agentrl.models import load_tokenizer  # transformers takes seconds to import
    from agentrl.models.vision import load_vision
    from agentrl.render import load_renderer

    tokenizer = load_tokenizer(model, chat_template=template, trust_remote_code=trust_remote_code)
    return load_renderer(tokenizer, chat_template_kwargs=json.loads(template_kwargs), vision=load_vision(model))
