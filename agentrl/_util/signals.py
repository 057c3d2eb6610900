"""Ctrl-C and SIGTERM end a run after its resources are closed."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")


class Terminated(KeyboardInterrupt):
    """SIGTERM asked the process to end."""


_PATIENCE_S = 10.0
"""Seconds during which a second Ctrl-C is ignored, so that the cleanup completes."""


def run(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run`, where Ctrl-C and SIGTERM cancel `main`. Raises KeyboardInterrupt or Terminated after the cleanup.

    A second SIGTERM is ignored: schedulers often send two, and the second must not interrupt the cleanup. A second
    Ctrl-C is ignored for ten seconds; later it ends the cleanup. Outside the main thread, where Python takes no
    signals, this is `asyncio.run`. An existing handler of SIGINT stays.
    """
    if threading.current_thread() is not threading.main_thread():
        return asyncio.run(main)
    running: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = []
    signals: list[tuple[int, float]] = []

    def end(number: int, frame: FrameType | None) -> None:
        if not signals:
            signals.append((number, time.monotonic()))
            if running:
                loop, task = running[0]
                loop.call_soon_threadsafe(task.cancel)  # wakes the loop, too
        elif number == signal.SIGINT and time.monotonic() - signals[0][1] > _PATIENCE_S:
            raise KeyboardInterrupt

    async def supervised() -> T:
        task = asyncio.current_task()
        assert task is not None
        running.append((asyncio.get_running_loop(), task))
        if signals:
            task.cancel()
        return await main

    free = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with _handled_by(end, [signal.SIGTERM, *([signal.SIGINT] if free else ())]):
        try:
            return asyncio.run(supervised())
        except asyncio.CancelledError:
            if signals:
                raise (KeyboardInterrupt if signals[0][0] == signal.SIGINT else Terminated) from None
            raise
        finally:
            main.close()  # of no effect, unless the loop never began


@contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], None], taken: Sequence[signal.Signals]) -> Iterator[None]:
    """Within `with`, `handler` receives the signals in `taken`."""
    before = [signal.signal(number, handler) for number in taken]
    try:
        yield
    finally:
        for number, old in zip(taken, before, strict=True):
            signal.signal(number, old)


@contextmanager
def raising_at_once() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM raise KeyboardInterrupt and Terminated at once in the block, also within `run`.

    For blocking work that may break off anywhere, such as a download: a cancelled task would end only after the
    download.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt if number == signal.SIGINT else Terminated

    taken = [number for number in (signal.SIGINT, signal.SIGTERM) if callable(signal.getsignal(number))]
    with _handled_by(end, taken):
        yield


@contextmanager
def stopping() -> Iterator[asyncio.Event]:
    """Let Ctrl-C and SIGTERM set an event in the block, for a server with a normal shutdown. Needs the main thread."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM)
    for number in signals:
        loop.add_signal_handler(number, stop.set)
    try:
        yield stop
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
