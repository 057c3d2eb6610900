"""The owner of files and machines, as text, and whether the owner is dead. The text is stored with the file or machine.

An owner is a process. On the same machine, in the same pid namespace, the process id and start time show whether the
process is alive. A reused process id has another start time. Owners on other machines and in containers cannot be seen.
They write heartbeats into a shared folder.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import tempfile
import threading
from collections.abc import Callable
from dataclasses import astuple, dataclass
from functools import cache
from pathlib import Path
from typing import Self

_INITIAL = "4026531836"
"""The inode number that Linux gives to a machine's own pid namespace. Containers have other numbers."""


@dataclass(frozen=True, slots=True)
class Owner:
    """A process that owns files or machines."""

    host: str
    """Name and id of the machine or container."""
    boot: str
    """Id of the machine's present boot. Containers see the id of their machine. Empty where unknown, as on macOS."""
    namespace: str
    """The pid namespace in which `pid` is valid. Empty if unknown."""
    pid: int
    start: str
    """When the process started, in clock ticks since the boot."""

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """The owner that `str` has written as `text`. None for any other text."""
        match = re.fullmatch(r"([\w.-]+)~(\w*)~(\d*)~(\d+)~(\d*)", text)
        return cls(match[1], match[2], match[3], int(match[4]), match[5]) if match else None

    def __str__(self) -> str:
        return "~".join(map(str, astuple(self)))


def current() -> str:
    """This process as an owner. The text has only letters, digits and `._-~`, so it fits into a label or file name."""
    return str(_owner(os.getpid()))


def is_dead(owner: str) -> bool | None:
    """Whether an owner is dead. None if the owner cannot be seen from this process."""
    other, here = Owner.parse(owner), _owner(os.getpid())
    if other is None:
        return None
    if other.boot and other.namespace and (other.boot, other.namespace) == (here.boot, here.namespace):
        return not _lives(other)
    rebooted = other.boot and here.boot and other.boot != here.boot and other.host == here.host
    if rebooted and other.namespace == here.namespace == _INITIAL:  # containers of several machines may look alike
        return True
    return None


class Heartbeat:
    """Touches this process's file in a folder as a sign of life.

    A thread writes, so that a busy event loop does not look dead. Heartbeats share no state, so no lock is needed and a
    fork is harmless. `failed` is called with each error of the file system.
    """

    def __init__(self, folder: Path, every_s: float, failed: Callable[[OSError], None]) -> None:
        self.file = folder / current()
        self._every_s, self._failed = every_s, failed
        self._ended = threading.Event()

    def start(self) -> None:
        """Touch the file now, and then at regular intervals."""
        self._beat()
        threading.Thread(target=self._keep_beating, name="agentrl-heartbeat", daemon=True).start()

    def stop(self) -> None:
        """Stop touching the file. The file stays."""
        self._ended.set()

    def _keep_beating(self) -> None:
        while not self._ended.wait(self._every_s):
            self._beat()

    def _beat(self) -> None:
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            self.file.touch()
        except OSError as exc:
            self._failed(exc)


def silent_s(folder: Path, owner: str) -> float | None:
    """Seconds since the last heartbeat of an owner. None without a heartbeat, or if the folder cannot be read."""
    try:
        return folder_time(folder) - (folder / owner).stat().st_mtime
    except OSError:
        return None


def folder_time(folder: Path) -> float:
    """The time by the clock of the folder's files, possibly of another machine. Raises OSError."""
    with tempfile.TemporaryFile(dir=folder) as file:
        return os.fstat(file.fileno()).st_mtime


def _lives(owner: Owner) -> bool:
    try:
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):  # another user's
        pass
    state, start = _process(owner.pid)
    return not start or (
        start == owner.start and state not in "ZX"
    )  # without a start time, /proc hides the process, which does live


@cache
def _owner(pid: int) -> Owner:
    boot = _read(Path("/proc/sys/kernel/random/boot_id")).replace("-", "")
    name = re.sub(r"[^\w.-]+", "-", socket.gethostname(), flags=re.ASCII)[:40] or "host"
    machine = hashlib.sha256(_read(Path("/etc/machine-id")).encode()).hexdigest()[:8]
    return Owner(f"{name}-{machine}", boot, _namespace(pid), pid, _process(pid)[1])


def _namespace(pid: int) -> str:
    try:
        if os.readlink("/proc/self") != str(pid):  # /proc shows another namespace
            return ""
        return re.sub(r"\D", "", os.readlink("/proc/self/ns/pid"))
    except OSError:
        return ""


def _process(pid: int) -> tuple[str, str]:
    """The state of a process (a letter, such as R or Z) and its start time in clock ticks since the boot. Both are
    empty if the process cannot be seen."""
    fields = _read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    return (fields[0], fields[19]) if len(fields) > 19 else ("", "")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
