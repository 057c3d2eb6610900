"""An event loop whose clock counts only this process's CPU time and the time in which the loop would be idle.

On a busy machine, a program behaves as on an idle core: waiting takes no real time, and time in which other programs
have the CPU does not count. For programs without threads and sockets.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _SkippingSelector(selectors.DefaultSelector):
    """A selector that never waits. It adds the seconds that it would have waited to the clock."""

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
    """Like asyncio.run, in an event loop with this clock."""
    with asyncio.Runner(loop_factory=OwnTimeLoop) as runner:
        return runner.run(coroutine)
