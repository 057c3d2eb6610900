"""SIGTERM ends a run as Ctrl-C does: the run closes its resources first."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Coroutine
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")


class Terminated(KeyboardInterrupt):
    """SIGTERM asked the process to end."""


def run(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run`, where SIGTERM cancels `main` as Ctrl-C does. Raises Terminated once `main` has cleaned up.

    A second SIGTERM is ignored: schedulers often send two, and the second must not interrupt the cleanup. Outside the
    main thread, where Python takes no signals, this is `asyncio.run`.
    """
    if threading.current_thread() is not threading.main_thread():
        return asyncio.run(main)
    running: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = []
    asked = False

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if not asked and running:
            loop, task = running[0]
            loop.call_soon_threadsafe(task.cancel)  # wakes the loop, too
        asked = True

    async def supervised() -> T:
        task = asyncio.current_task()
        assert task is not None
        running.append((asyncio.get_running_loop(), task))
        if asked:
            task.cancel()
        return await main

    before = signal.signal(signal.SIGTERM, end)
    try:
        return asyncio.run(supervised())
    except asyncio.CancelledError:
        if asked:
            raise Terminated from None
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
        main.close()  # of no effect, unless the loop never began
