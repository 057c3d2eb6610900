"""A thread for blocking hooks, and waiting for many coroutines at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


async def gather(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Results in order. Unlike asyncio.gather, the first exception cancels the others and waits for them."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(coroutine) for coroutine in coroutines]
    except BaseExceptionGroup as exc:
        raise exc.exceptions[0] from None
    return [task.result() for task in tasks]


class Worker:
    """One daemon thread, started on first use, that runs blocking functions one at a time and in order.

    One thread an owner, because sqlite connections and synchronous browsers are bound to theirs; a daemon, because a
    function that never returns must not keep the process alive (`ThreadPoolExecutor` would join it at exit).
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    async def run(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """The function's result or exception. When cancelled, a function not yet started never starts."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def settle(method: Callable[[Any], None], value: Any) -> None:
            if not future.done():
                method(value)

        def report(method: Callable[[Any], None], value: Any) -> None:
            if not loop.is_closed():  # the episode is long gone
                loop.call_soon_threadsafe(settle, method, value)

        def job() -> None:
            if future.cancelled():
                return
            try:
                result = function(*args, **kwargs)
            except BaseException as exc:  # noqa: BLE001 - the thread boundary: it is raised where it is awaited
                report(future.set_exception, _carriable(exc))
            else:
                report(future.set_result, result)

        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        self._jobs.put(job)
        return await future

    def stop(self) -> None:
        """Let the thread end after the jobs it has; does not wait."""
        self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()


def _carriable(exc: BaseException) -> BaseException:
    # A future refuses StopIteration, and anything that is no Exception would end the loop that awaits it.
    if isinstance(exc, StopIteration) or not isinstance(exc, Exception):
        return RuntimeError(f"{type(exc).__name__} in a thread: {exc}")
    return exc


def is_cancelled() -> bool:
    """The running task is to end, and not just something that it waited for."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
