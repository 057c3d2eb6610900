"""Who owns a sandbox, as text that is kept with it, and whether that owner is gone.

An owner is a process. On its own machine, and in its own pid namespace, the process id and start time show whether it
is alive; a reused process id has another start time. Owners elsewhere (on another machine, in a container) cannot be
seen from here. They never count as gone, unless they share a folder of heartbeats with this process: AGENTRL_OWNERS
names it. Otherwise their sandboxes' deadlines decide.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from functools import cache
from pathlib import Path
from typing import Self

log = logging.getLogger("agentrl")

FOLDER = "AGENTRL_OWNERS"
"""Environment variable: a folder that several machines or containers share, for their heartbeats."""
RUN = "AGENTRL_RUN"
"""Environment variable: the name of the run."""

BEAT_S = 15.0
"""Seconds between heartbeats."""
_STALE_S = 300.0
"""An owner whose last heartbeat is older is gone. Network file systems may show times that are a minute old."""
_FORGOTTEN_S = 7 * 86400.0
"""Heartbeats of dead owners are removed after this time. By then the deadlines of their sandboxes have passed."""
_INITIAL = "4026531836"
"""Linux gives this number to a machine's own pid namespace. Containers have other numbers."""


@dataclass(frozen=True, slots=True)
class Owner:
    """A process that owns sandboxes."""

    host: str
    """Name and id of the machine or container."""
    boot: str
    """Id of this boot of the machine; its containers see the same. Empty where there is none, as on macOS."""
    namespace: str
    """The pid namespace in which `pid` is valid. Empty if it is not known."""
    pid: int
    start: str
    """When the process started, in clock ticks since the boot."""

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """The owner that `str` wrote, or None if it is from something else."""
        match = re.fullmatch(r"([\w.-]+)~(\w*)~(\d*)~(\d+)~(\d*)", text)
        return cls(match[1], match[2], match[3], int(match[4]), match[5]) if match else None

    def __str__(self) -> str:
        return "~".join(map(str, astuple(self)))


def current() -> str:
    """This process as an owner. Its characters are letters, digits and `._-~`, so it fits into a label or file name."""
    return str(_owner(os.getpid()))


def run_name() -> str:
    """The name of this run: AGENTRL_RUN, or the name of the program. Letters, digits and `._-`, at most 63."""
    name = os.environ.get(RUN) or Path(sys.argv[0] if sys.argv else "").stem
    return re.sub(r"[^\w.-]+", "-", name, flags=re.ASCII)[:63].strip("-") or "python"


def is_gone(owner: str, deadline: float = float("inf")) -> bool:
    """Whether a sandbox's owner is known to be gone, or its deadline (Unix time) has passed.

    If it cannot be known, the answer is False: keeping a sandbox too long is better than taking it from its owner.
    """
    return time.time() > deadline or _is_gone(owner)


def _is_gone(text: str) -> bool:
    owner, own = Owner.parse(text), _owner(os.getpid())
    if owner is None:
        return False
    if owner.boot and owner.namespace and (owner.boot, owner.namespace) == (own.boot, own.namespace):
        return not _lives(owner)
    rebooted = owner.boot and own.boot and owner.boot != own.boot and owner.host == own.host
    if rebooted and owner.namespace == own.namespace == _INITIAL:  # containers of several machines may look alike
        return True
    return _is_silent(text)


def _lives(owner: Owner) -> bool:
    try:
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):  # another user's
        pass
    state, start = _process(owner.pid)
    return not start or (start == owner.start and state not in "ZX")  # without a start, /proc hides it: it does live


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
    """The state of a process and its start time; both empty if it cannot be seen."""
    fields = _read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    return (fields[0], fields[19]) if len(fields) > 19 else ("", "")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


# Heartbeats


@contextlib.contextmanager
def heartbeat() -> Iterator[None]:
    """Show others that this process lives, if AGENTRL_OWNERS names a folder that they share.

    A thread touches a file there, so a busy event loop does not make the owner look dead.
    """
    folder = _folder()
    if folder is None:
        yield
        return
    # Each user of this function has its own thread: nothing is shared, so nothing needs a lock or survives a fork.
    file, stop = folder / current(), threading.Event()
    _beat(file)
    heart = threading.Thread(target=_keep_beating, args=(file, stop), name="agentrl-heartbeat", daemon=True)
    heart.start()
    try:
        yield
    finally:
        stop.set()
        _forget_the_dead(folder)


def _keep_beating(file: Path, stop: threading.Event) -> None:
    while not stop.wait(BEAT_S):
        _beat(file)


def _beat(file: Path) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    except OSError as exc:
        log.warning("%s: no heartbeat can be written to %s: %s", FOLDER, file.parent, exc.strerror)


def _is_silent(owner: str) -> bool:
    """Whether the owner once wrote a heartbeat to our folder, and has written none for a while."""
    folder = _folder()
    if folder is None:
        return False
    try:
        return _now(folder) - (folder / owner).stat().st_mtime > _STALE_S
    except OSError:
        return False


def _forget_the_dead(folder: Path) -> None:
    with contextlib.suppress(OSError):
        now = _now(folder)
        for file in folder.iterdir():
            if Owner.parse(file.name) and now - file.stat().st_mtime > _FORGOTTEN_S:
                file.unlink(missing_ok=True)


def _now(folder: Path) -> float:
    """The time by the clock that the folder's files show, which may be another machine's."""
    with tempfile.TemporaryFile(dir=folder) as file:
        return os.fstat(file.fileno()).st_mtime


def _folder() -> Path | None:
    name = os.environ.get(FOLDER)
    return Path(name).expanduser() if name else None
