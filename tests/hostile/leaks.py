"""What a run may leave behind: tasks, threads, processes, open files, temporary files."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from tests.hostile.hooks import SLEEP

WAIT_S = 20.0
OF_HOSTS = ("asyncio_", "tqdm_monitor")
"""Threads that a host keeps: those of its event loop's pool, and of its progress bar."""


async def no_tasks_left(*kept: str) -> None:
    """Wait until the running task is the only one of its loop, apart from those with such a word in their picture."""
    until = time.monotonic() + WAIT_S
    while others := {t for t in asyncio.all_tasks() if not any(word in repr(t) for word in kept)} - {
        asyncio.current_task()
    }:
        await asyncio.wait(others, timeout=WAIT_S, return_when=asyncio.FIRST_COMPLETED)
        assert time.monotonic() < until, "\n".join(map(repr, others))


class Before:
    """What was there before; `nothing_left` compares."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        gc.collect()
        self.there = self.look()

    def look(self) -> Counter[str]:
        threads = [t.name for t in threading.enumerate() if not t.name.startswith(OF_HOSTS)]
        files = [f"file {name}" for name in os.listdir(self.folder) if not name.startswith("torchinductor")]
        return Counter([*(f"thread {name}" for name in threads), *files, *open_files(), *processes()])

    def nothing_left(self) -> None:
        until = time.monotonic() + WAIT_S
        while (left := self.look() - self.there) and time.monotonic() < until:
            gc.collect()
            time.sleep(0.02)  # neither a thread nor a process says that it ends
        assert not left, sorted(left)


def open_files() -> list[str]:
    found = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # that of the listing itself
            found.append(f"open {os.readlink(f'/proc/self/fd/{number}').partition('[')[0]}")
    return [name for name in found if "/proc/" not in name]


def processes() -> list[str]:
    """Children, the dead among them included, and what an Env has hidden."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            parent = Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[1]
            command = Path("/proc", pid, "cmdline").read_text().replace("\0", " ").strip()
            if parent == str(os.getpid()) or command == f"sleep {SLEEP}":
                found.append(f"process {pid} {command}")
    return found
