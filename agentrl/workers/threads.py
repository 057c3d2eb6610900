"""An event loop in a separate thread, for a pool that several event loops share."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """Runs coroutines in a daemon thread, which starts on first use."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    async def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the thread, and return its result. If the caller is cancelled, the coroutine is
        cancelled."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self._started()))

    def run_here(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine, for a caller without an event loop. The caller is blocked until the result. If the caller is
        interrupted, the coroutine is cancelled, and the caller waits for its end. A second interrupt ends the wait."""
        loop, ended, started = self._started(), threading.Event(), list[asyncio.Task[T]]()

        def start() -> None:
            started.append(loop.create_task(coroutine))
            started[0].add_done_callback(lambda _: ended.set())

        def cancel() -> None:
            if started:
                started[0].cancel()
            else:  # interrupted before `start` was passed on
                coroutine.close()
                ended.set()

        try:
            loop.call_soon_threadsafe(start)
            _wait(ended)
        except BaseException:
            loop.call_soon_threadsafe(cancel)
            _wait(ended)
            raise
        return started[0].result()

    def stop(self) -> None:
        """End the thread. Safe to call twice."""
        if self._loop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            self._loop = None

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name=self._name, daemon=True)
                self._thread.start()
        return self._loop


def _wait(event: threading.Event) -> None:
    """Wait in pieces, because Python sees a signal that comes just before a wait only after the wait."""
    while not event.wait(0.2):
        pass
