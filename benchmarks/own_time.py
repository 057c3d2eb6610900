"""An event loop whose clock counts this process's CPU time, and the time in which it would have nothing to do.

On a machine of other programs' work it shows what the loop would do on a core of its own: waiting takes no time, and
being kept from the CPU counts nothing. For programs without threads and sockets.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _SkippingSelector(selectors.DefaultSelector):
    """Waits for nothing: it looks once, and notes how long it would have waited."""

    skipped = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        found = super().select(0)
        if not found and timeout is not None and timeout > 0:
            self.skipped += timeout
        return found


class OwnTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._skipping = _SkippingSelector()
        super().__init__(self._skipping)

    def time(self) -> float:
        return time.process_time() + self._skipping.skipped


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """As asyncio.run, in a loop with its own time."""
    with asyncio.Runner(loop_factory=OwnTimeLoop) as runner:
        return runner.run(coroutine)
