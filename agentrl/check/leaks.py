"""The tasks, threads, files and processes that an episode leaves open, with the lines that created them."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from agentrl._util.findings import Place
from agentrl.check.places import AuthorCode

_WAIT_S = 0.4
"""Seconds that a thread, a process or an abandoned task may take to end by itself."""
_OF_HOST = ("asyncio_", "agentrl-check", "tqdm_monitor", "env-", "pydevd", "ThreadPoolExecutor-agentrl")


@dataclass(frozen=True, slots=True)
class Leak:
    """An object that an episode left open."""

    kind: str
    name: str
    place: Place | None
    key: object = field(compare=False, hash=False)

    @property
    def same(self) -> tuple[str, object]:
        """A key that is equal for two leaks of the same kind from the same line, in different episodes."""
        return self.kind, self.place or self.name


@dataclass(slots=True)
class _Snapshot:
    tasks: set[Any]
    threads: set[Any]
    files: Mapping[int, str]
    processes: Mapping[int, str]
    temporary: set[str]
    sandboxes: int


class LeakTracker:
    """Records, within `with`, the line that creates each task, thread, file and process."""

    def __init__(self, author: AuthorCode, sandboxes: Callable[[], int] = lambda: 0) -> None:
        self._author, self._sandboxes = author, sandboxes
        self._tasks: WeakKeyDictionary[Any, Place] = WeakKeyDictionary()
        self._threads: WeakKeyDictionary[threading.Thread, Place] = WeakKeyDictionary()
        self._sockets: WeakKeyDictionary[Any, Place] = WeakKeyDictionary()
        self._opened: dict[str, Place] = {}
        self._started: dict[str, Place] = {}
        self._temporary_files: dict[str, Place] = {}
        self.reported: set[tuple[str, object]] = set()
        """Objects that were reported before, and are not reported again."""
        self._temporary = os.path.realpath(tempfile.gettempdir())

    @contextmanager
    def watching(self) -> Iterator[LeakTracker]:
        loop, start = asyncio.get_running_loop(), threading.Thread.start
        factory = loop.get_task_factory()
        ledger = self

        def make(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], **kwargs: Any) -> Any:
            task = (
                asyncio.Task(coroutine, loop=loop, **kwargs) if factory is None else factory(loop, coroutine, **kwargs)
            )
            if (place := ledger._author.here()) is not None:
                ledger._tasks[task] = place
            return task

        def begin(thread: threading.Thread) -> None:
            if (place := ledger._author.here()) is not None:
                ledger._threads[thread] = place
            start(thread)

        loop.set_task_factory(make)  # type: ignore[arg-type]
        threading.Thread.start = begin  # type: ignore[method-assign, assignment]
        _listen(self._hear)
        try:
            yield self
        finally:
            _listeners.remove(self._hear)
            threading.Thread.start = start  # type: ignore[method-assign]
            loop.set_task_factory(factory)

    def look(self) -> _Snapshot:
        """All objects that are open now."""
        tasks = {task for task in asyncio.all_tasks() if not task.done()}
        threads = {t for t in threading.enumerate() if not t.name.startswith(_OF_HOST)}
        return _Snapshot(
            tasks,
            threads,
            _open_files(),
            _children(),
            {p for p in self._temporary_files if os.path.lexists(p)},
            self._sandboxes(),
        )

    async def leaks(self, before: _Snapshot, *, patience: float = _WAIT_S) -> list[Leak]:
        """The objects that are open now but not in `before`, and that do not end by themselves."""
        until = time.monotonic() + patience
        while True:
            await asyncio.sleep(0)
            leaks = list(self._since(before))
            if time.monotonic() > until or all(leak.same in self.reported for leak in leaks):
                return leaks
            gc.collect()
            await asyncio.sleep(0.02)

    async def clear(self, leaks: list[Leak]) -> None:
        """End the remaining objects, as far as possible, so that they do not disturb the next check."""
        for leak in leaks:
            if leak.kind == "task" and isinstance(leak.key, asyncio.Task):
                leak.key.cancel()
            elif leak.kind == "process" and isinstance(leak.key, int):
                with suppress(OSError):
                    os.kill(leak.key, signal.SIGKILL)
        if tasks := [leak.key for leak in leaks if isinstance(leak.key, asyncio.Task)]:
            await asyncio.wait(tasks, timeout=_WAIT_S)

    def _since(self, before: _Snapshot) -> Iterator[Leak]:
        now = self.look()
        for task in now.tasks - before.tasks:
            if (place := self._tasks.get(task)) is not None:
                yield Leak("task", task.get_coro().__qualname__, place, task)
        for thread in now.threads - before.threads:
            if (place := self._threads.get(thread)) is not None:
                yield Leak("thread", thread.name, place, thread)
        yield from self._outside(now, before)

    def _outside(self, now: _Snapshot, before: _Snapshot) -> Iterator[Leak]:
        """The leaks outside of Python: processes, sandboxes and files."""
        for pid, command in now.processes.items():
            if before.processes.get(pid) is None:
                yield Leak("process", command, self._started.get(command), pid)
        if now.sandboxes > before.sandboxes:
            places = [place for place, name in self._author.calls(lambda name: name.endswith(".acquire"))]
            yield Leak("sandbox", f"{now.sandboxes - before.sandboxes} of the pool", next(iter(places), None), None)
        for path in sorted(now.temporary - before.temporary):
            yield Leak("temporary file", path, self._temporary_files[path], path)
        for number, name in now.files.items():
            if before.files.get(number) != name:
                yield Leak("open file", name, self._opener(number, name), number)

    def _opener(self, number: int, name: str) -> Place | None:
        if name.startswith("socket:"):
            return next(
                (place for opened_socket, place in list(self._sockets.items()) if opened_socket.fileno() == number),
                None,
            )
        return self._opened.get(name)

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        hear = _EVENTS.get(event)
        if hear is not None and (place := self._author.here()) is not None:
            hear(self, args, place)

    # Which line made what: Python's audit events come before the event itself

    def _opens(self, args: tuple[Any, ...], place: Place) -> None:
        path, _, flags = args
        if not isinstance(path, str | bytes | os.PathLike):
            return
        name = os.path.realpath(os.fsdecode(path))
        self._opened[name] = place
        if isinstance(flags, int) and flags & os.O_CREAT:
            self._makes(name, place)

    def _makes(self, path: str, place: Place) -> None:
        """Record a temporary file or folder that does not exist yet."""
        inside = path.startswith(f"{self._temporary}{os.sep}")
        if (
            inside
            and not os.path.lexists(path)
            and not any(path.startswith(f"{other}{os.sep}") for other in self._temporary_files)
        ):
            self._temporary_files[path] = place

    def _makes_folder(self, args: tuple[Any, ...], place: Place) -> None:
        with suppress(TypeError):
            self._makes(os.path.realpath(os.fsdecode(args[0])), place)

    def _starts(self, args: tuple[Any, ...], place: Place) -> None:
        command = args[1]
        words = [command] if isinstance(command, str | bytes | os.PathLike) else command
        self._started[" ".join(os.fsdecode(word) for word in words)] = place

    def _connects(self, args: tuple[Any, ...], place: Place) -> None:
        with suppress(TypeError):
            self._sockets[args[0]] = place

    def _connects_database(self, args: tuple[Any, ...], place: Place) -> None:
        with suppress(TypeError):
            self._opened[os.path.realpath(os.fsdecode(args[0]))] = place


_Heard = Callable[[LeakTracker, tuple[Any, ...], Place], None]
_EVENTS: Mapping[str, _Heard] = {
    "open": LeakTracker._opens,
    "os.mkdir": LeakTracker._makes_folder,
    "tempfile.mkstemp": LeakTracker._makes_folder,
    "tempfile.mkdtemp": LeakTracker._makes_folder,
    "subprocess.Popen": LeakTracker._starts,
    "socket.__new__": LeakTracker._connects,
    "sqlite3.connect": LeakTracker._connects_database,
}
_listeners: list[Callable[[str, tuple[Any, ...]], None]] = []
_hooked: list[bool] = []


def _listen(listener: Callable[[str, tuple[Any, ...]], None]) -> None:
    """Call a function for Python's audit events. A hook cannot be removed, so a single hook serves all calls."""
    _listeners.append(listener)
    if not _hooked:
        _hooked.append(True)
        sys.addaudithook(_told)


def _told(event: str, args: tuple[Any, ...]) -> None:
    if _listeners and event in _EVENTS:
        for listener in _listeners:
            listener(event, args)


def sandboxes_held(shared: object) -> int:
    """How many sandboxes of a pool are in use; 0 if `shared` is not a pool."""
    figures = getattr(shared, "figures", None)
    lanes = getattr(figures() if callable(figures) else None, "lanes", {})
    return sum(int(getattr(lane, "in_use", 0)) for lane in lanes.values())


def _open_files() -> dict[int, str]:
    names = {}
    with suppress(OSError):  # only systems with /proc
        for number in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                names[int(number)] = os.readlink(f"/proc/self/fd/{number}")
    return {number: name for number, name in names.items() if not name.startswith(("/proc/", "anon_inode:"))}


def _children() -> dict[int, str]:
    commands = {}
    for task in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):
            for pid in task.read_text().split():
                commands[int(pid)] = Path("/proc", pid, "cmdline").read_text().replace("\0", " ").strip()
    return commands
