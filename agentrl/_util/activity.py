"""The hook, tool or request for which an episode waits, and the start of the wait."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class Activity:
    """The present work of one episode. Several entries may be open at once; `now` gives the latest."""

    __slots__ = ("_entries", "_moved")

    def __init__(self) -> None:
        self._entries: list[tuple[str, float]] = []
        self._moved = time.time()

    def begin(self, name: str) -> tuple[str, float]:
        """Note a beginning. Give the result to `end`."""
        entry = name, time.time()
        self._entries.append(entry)
        return entry

    def end(self, entry: tuple[str, float]) -> None:
        if entry in self._entries:
            self._entries.remove(entry)
        self._moved = time.time()

    @property
    def now(self) -> tuple[str, float]:
        """The name of the present work, and its start in seconds since 1970. The name is "" between two entries."""
        entries = list(self._entries)  # another thread reads this
        return (entries[-1][0], max(entries[-1][1], self._moved)) if entries else ("", self._moved)


activity: ContextVar[Activity | None] = ContextVar("agentrl_activity", default=None)
"""The activity of the episode of this task."""


@contextmanager
def doing(name: str) -> Iterator[None]:
    """Enter `name` into the activity of this task's episode while the block runs."""
    present = activity.get()
    if present is None:
        yield
        return
    entry = present.begin(name)
    try:
        yield
    finally:
        present.end(entry)
