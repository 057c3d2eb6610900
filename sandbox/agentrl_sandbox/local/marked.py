"""The processes of a local sandbox, identified by environment or by working folder."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

_DYING_S = 5.0


def kill_all(marks: set[bytes], root: Path | None) -> None:
    """Kill the processes in `belonging`, and wait until all are gone.

    Without /proc, as on macOS, no process is killed.
    """
    deadline = time.monotonic() + _DYING_S
    while (pids := belonging(marks, root)) and time.monotonic() < deadline:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def belonging(marks: set[bytes], root: Path | None) -> set[int]:
    """Three kinds of processes: processes with all `marks` (`NAME=value`) in the environment; processes without a
    terminal and with a working folder below `root`; and the children of either.

    A person's shell below `root` has a terminal, and is spared.
    """
    parents: dict[int, int] = {}
    pids: set[int] = set()
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if not name.isdecimal():
            continue
        with contextlib.suppress(OSError):  # gone meanwhile, or of a different user
            state, parent, terminal = _status(Path("/proc", name))
            if state == "Z":  # a zombie; only the parent can reap a zombie
                continue
            parents[int(name)] = parent
            if _is_marked(Path("/proc", name), marks) or (not terminal and _works_below(Path("/proc", name), root)):
                pids.add(int(name))
    pids.discard(os.getpid())
    while more := {pid for pid, parent in parents.items() if parent in pids} - pids:
        pids |= more
    return pids


def _status(process: Path) -> tuple[str, int, int]:
    """State, parent and terminal of a process (0: no terminal)."""
    fields = (process / "stat").read_text().rpartition(")")[2].split()
    return fields[0], int(fields[1]), int(fields[4])


def _is_marked(process: Path, marks: set[bytes]) -> bool:
    return marks <= set((process / "environ").read_bytes().split(b"\0"))


def _works_below(process: Path, root: Path | None) -> bool:
    if root is None:
        return False
    folder = Path(os.readlink(process / "cwd"))
    return folder == root or root in folder.parents
