"""What a program leaves behind: processes, listening ports, shared memory and temporary folders.

Linux only: everything is read from /proc. The watch does not rely on the program's own book-keeping: it follows the
children of the program's process, also after their parents have ended, and recognizes all others by an environment
variable that the caller sets.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

MARKER = "REHEARSAL_UNDER_WATCH"
"""The environment variable by which a process is recognized. Give it to the program, with a value of its own."""
_INTERVAL_S = 0.25
_LISTENS = "0A"
_SHARED = Path("/dev/shm")
_TEMPORARY = re.compile(r"(?:--temp[-_]dir|--session[-_]dir|--store_socket|--raylet_socket_name)[= ](/\S+)")


@dataclass(frozen=True, slots=True, order=True)
class Process:
    """A process. Its start tells it from a later process with the same number."""

    number: int
    started: int


@dataclass(slots=True)
class Watch:
    """Follows a program from its start. `with Watch(pid, value) as watch`; then ask `left`."""

    root: int
    value: str
    """The value of MARKER."""
    seen: dict[Process, str] = field(default_factory=dict)
    """Each process of the program -> its command line."""
    ports: set[int] = field(default_factory=set)
    folders: set[Path] = field(default_factory=set)
    """Folders of shared memory and Ray's folders that the program made."""
    _before: set[Path] = field(default_factory=set)
    _end: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread = field(init=False)

    def __enter__(self) -> Self:
        self._before = set(_SHARED.iterdir())
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        self._thread.join()

    def _follow(self) -> None:
        while not self._end.wait(_INTERVAL_S):
            self.look()

    def look(self) -> None:
        """Note what the program has at this moment."""
        parents = dict(_processes())
        ours = {process.number for process in self.seen} | {self.root}
        grown = True
        while grown:  # a child may have a smaller number than its parent
            new = {process.number for process, parent in parents.items() if parent in ours} - ours
            ours |= new
            grown = bool(new)
        for process in parents:
            if process in self.seen or not (process.number in ours or self._is_marked(process.number)):
                continue
            self.seen[process] = command_line(process.number)
            self.folders |= {Path(folder) for folder in _TEMPORARY.findall(self.seen[process])}
        alive = [process.number for process in parents if process in self.seen]
        self.ports |= listening(alive)
        for number in alive:
            self.folders |= shared_memory(number) - self._before

    def _is_marked(self, number: int) -> bool:
        with suppress(OSError):
            return f"{MARKER}={self.value}".encode() in Path(f"/proc/{number}/environ").read_bytes().split(b"\0")
        return False

    def named(self, part: str) -> list[int]:
        """The living processes whose command line has a part, in the order of their start. Ray changes the line."""
        self.look()
        alive = {process for process, _ in _processes()} & set(self.seen)
        ordered = sorted(alive, key=lambda process: (process.started, process.number))
        return [process.number for process in ordered if part in command_line(process.number)]

    def left(self) -> list[str]:
        """What the program has left behind by now, an item a line. Zombies do not count: they hold nothing."""
        self.look()
        alive = {process for process, _ in _processes()}
        lines = [f"process {process.number}: {self.seen[process]:.200}" for process in sorted(alive & set(self.seen))]
        lines += [f"port {port} listens" for port in sorted(self.ports & listening())]
        lines += [f"{folder} exists" for folder in sorted(self.folders) if folder.exists()]
        return lines


def _processes() -> Iterator[tuple[Process, int]]:
    """All living processes with their parents' numbers, without zombies."""
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        with suppress(OSError):
            state, parent, *rest = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
            if state not in "ZX":
                yield Process(int(folder.name), int(rest[17])), int(parent)


def command_line(number: int) -> str:
    """Empty for a process that has ended."""
    with suppress(OSError):
        return Path(f"/proc/{number}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    return ""


def listening(numbers: list[int] | None = None) -> set[int]:
    """The TCP ports at which these processes listen; None: any process of this machine."""
    sockets = {}
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENS:
                    sockets[f"socket:[{fields[9]}]"] = int(fields[1].rpartition(":")[2], 16)
    if numbers is None:
        return set(sockets.values())
    return {sockets[link] for number in numbers for link in _open_files(number) if link in sockets}


def shared_memory(number: int) -> set[Path]:
    """The names below /dev/shm that a process has open or mapped. A removed name is not counted."""
    lines = list(_open_files(number))
    with suppress(OSError):
        lines += Path(f"/proc/{number}/maps").read_text(errors="replace").splitlines()
    names = {line.partition(f"{_SHARED}/")[2].split("/")[0] for line in lines if f"{_SHARED}/" in line}
    return {_SHARED / name for name in names if name and not name.endswith("(deleted)")}


def _open_files(number: int) -> Iterator[str]:
    with suppress(OSError):
        for link in Path(f"/proc/{number}/fd").iterdir():
            with suppress(OSError):
                yield str(link.readlink())
