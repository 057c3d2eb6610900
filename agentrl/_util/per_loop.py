"""An object for each event loop: aiohttp's sessions, semaphores and tasks are bound to the loop of their creation."""

from __future__ import annotations

from asyncio import AbstractEventLoop, get_running_loop
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class PerLoop(dict[AbstractEventLoop, T]):
    """Objects by event loop. Threads may share a PerLoop, because each adds only the object of its own loop.

    The objects hold their loops, so weak keys would not prevent leaks. Each new loop drops the objects of closed loops.
    """

    def here(self, make: Callable[[], T]) -> T:
        """The object of the running loop, made on first use."""
        loop = get_running_loop()
        if loop not in self:
            self.pop_closed()
            self[loop] = make()
        return self[loop]

    def pop_closed(self) -> list[tuple[AbstractEventLoop, T]]:
        """Remove and return the objects of closed loops. Concurrent threads get each object once."""
        closed = [(loop, self.pop(loop, None)) for loop in list(self) if loop.is_closed()]
        return [(loop, value) for loop, value in closed if value is not None]
