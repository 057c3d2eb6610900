"""Containers of a killed engine that has not come back: the processes run on, unknown to any engine.

Orphans are identified by the name of a sandbox's first process, or by a variable of the services, on the engine's
machine. The parent of an orphan is containerd's shim. The shim's command line names the socket of the shim's
containerd.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentrl_sandbox.backend import Leftover
from agentrl_sandbox.docker.container import FIRST, SANDBOX_VARIABLE

_CGROUPS = Path("/sys/fs/cgroup")
_DYING_S = 5.0


@dataclass(frozen=True, slots=True)
class _Orphan:
    sandbox_id: str
    pid: int
    """The first process. The end of the first process ends the whole container."""
    shim: int


class Orphans:
    """A `Tidied` without an engine."""

    async def leftovers(self) -> Sequence[Leftover]:
        """See `Tidied.leftovers`."""
        return [
            Leftover("process", orphan.sandbox_id, f"its engine is gone; process {orphan.pid}, shim {orphan.shim}")
            for orphan in await asyncio.to_thread(_orphans)
        ]

    async def clear(self, leftovers: Sequence[Leftover]) -> Sequence[Leftover]:
        """See `Tidied.clear`."""
        by_name = {entry.name: entry for entry in leftovers if entry.kind == "process"}
        orphans = [entry for entry in await asyncio.to_thread(_orphans) if entry.sandbox_id in by_name]
        return [by_name[entry.sandbox_id] for entry in orphans if await asyncio.to_thread(_end, entry)]


def _orphans() -> list[_Orphan]:
    return [orphan for pid in _pids() if (orphan := _orphan(pid)) is not None]


def _orphan(pid: int) -> _Orphan | None:
    words = _command(pid)
    name = words[-1] if words[1:5] == ["--", "/bin/sh", "-c", FIRST] else _variable(pid)
    if not re.fullmatch(r"docker-[0-9a-f]{16}", name):
        return None
    shim = _parent(pid)
    shim_command = _command(shim) if shim else []
    if (
        not shim_command
        or not Path(shim_command[0]).name.startswith("containerd-shim")
        or "-address" not in shim_command[:-1]
    ):
        return None
    # A shim in a foreign container names a path with a different meaning here.
    if not _shares_files(shim) or _answers(shim_command[shim_command.index("-address") + 1]):
        return None
    return _Orphan(name, pid, shim)


def _end(orphan: _Orphan) -> bool:
    """Kill the container's first process and the shim, and remove the cgroups. False if this user lacks the rights."""
    folders = list(_folders(orphan.pid))
    try:
        os.kill(orphan.pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.kill(orphan.shim, signal.SIGKILL)
    except ProcessLookupError:
        pass
    except PermissionError:
        return False
    deadline = time.monotonic() + _DYING_S
    remaining = folders
    while (remaining := [folder for folder in remaining if not _gone(folder)]) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not remaining


def _gone(folder: Path) -> bool:
    with contextlib.suppress(OSError):  # a process inside is still dying
        folder.rmdir()
    return not folder.exists()


def _folders(pid: int) -> Iterator[Path]:
    """The cgroups of a process, but for a hierarchy's root."""
    for line in _read(f"/proc/{pid}/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        for name in [controllers.removeprefix("name=")] if controllers else ["", "unified"]:
            folder = _CGROUPS / name / path.strip("/")
            if path.strip("/") and folder.is_dir():
                yield folder


def _answers(address: str) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(1.0)
        try:
            client.connect(address)
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except OSError:  # present, but slow, or closed to this user
            return True
    return True


def _shares_files(pid: int) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/ns/mnt") == os.readlink("/proc/self/ns/mnt")
    except OSError:
        return False


def _pids() -> list[int]:
    with contextlib.suppress(OSError):
        return [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    return []


def _command(pid: int) -> list[str]:
    return _read(f"/proc/{pid}/cmdline").removesuffix("\0").split("\0")


def _variable(pid: int) -> str:
    """The sandbox of a service's process; empty for any other."""
    lines = (line for line in _read(f"/proc/{pid}/environ").split("\0") if line.startswith(f"{SANDBOX_VARIABLE}="))
    return next(lines, "").partition("=")[2]


def _parent(pid: int) -> int:
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return int(fields[1]) if len(fields) > 1 else 0


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
