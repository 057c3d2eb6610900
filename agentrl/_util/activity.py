"""Which hook, tool or request an episode waits for, and since when."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class Activity:
    """The hooks, tools and requests that run in an episode. Several may run at once; `now` gives the latest."""

    __slots__ = ("_entries", "_moved")

    def __init__(self) -> None:
        self._entries: list[tuple[str, float]] = []
        self._moved = time.time()

    def begin(self, name: str) -> tuple[str, float]:
        """Record the start of a hook, tool or request. The result is the argument of `end`."""
        entry = name, time.time()
        self._entries.append(entry)
        return entry

    def end(self, entry: tuple[str, float]) -> None:
        if entry in self._entries:
            self._entries.remove(entry)
        self._moved = time.time()

    @property
    def now(self) -> tuple[str, float]:
        """The name of the latest running entry, and its start in seconds since 1970. The name is "" if nothing runs."""
        entries = list(self._entries)  # another thread reads this
        return (entries[-1][0], max(entries[-1][1], self._moved)) if entries else ("", self._moved)


activity: ContextVar[Activity | None] = ContextVar("agentrl_activity", default=None)
"""The Activity of the episode that the current asyncio task plays."""


@contextmanager
def doing(name: str) -> Iterator[None]:
    """List `name` in the Activity of the current task's episode while the block runs."""
    present = activity.get()
    if present is None:
        yield
        return
    entry = present.begin(name)
    try:
        yield
    finally:
        present.end(entry)
