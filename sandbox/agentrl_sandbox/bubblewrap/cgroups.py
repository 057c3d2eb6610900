"""The cgroups of a box: folders with limits for all commands together, and a folder to kill each command.

Version 1 has a hierarchy for each controller, version 2 a single hierarchy. Most users except root cannot
create cgroups. Then a box has no cgroups, and the limits apply to each process alone.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from agentrl_sandbox.spec import SandboxSpec

_ROOT = Path("/sys/fs/cgroup")
_CONTROLLERS = ("memory", "cpu", "pids")
NAME = "agentrl"
"""The prefix of the names of agentrl's cgroups."""
_NEW_S = 60.0
"""Seconds after which an empty folder is removed. A younger folder may belong to a box that is being created."""
_DYING_S = 5.0
_PERIOD_US = 100_000


@dataclass(frozen=True)
class Cgroups:
    """The cgroup folders of a box. The folders of commands are inside the `pids` folder."""

    folders: tuple[Path, ...]
    commands: Path
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    @classmethod
    def make(cls, name: str, spec: SandboxSpec) -> Cgroups | None:
        """Create the cgroups of a box. None if this process may not create cgroups, or if a controller is missing."""
        for make in (_version_1, _version_2):
            if groups := make(name, spec):
                return groups
        return None

    def command(self) -> CommandCgroup:
        folder = self.commands / f"c{next(self._numbers)}"
        folder.mkdir()
        return CommandCgroup(
            folder, tuple(str(parent / "cgroup.procs") for parent in (folder, *self.folders) if parent != self.commands)
        )

    def killed_for_memory(self) -> int:
        """How many processes the kernel killed because the box's memory was used up."""
        for folder, name in itertools.product(self.folders, ("memory.oom_control", "memory.events")):
            with contextlib.suppress(OSError):
                words = (folder / name).read_text().split()
                return int(words[words.index("oom_kill") + 1])
        return 0

    def remove(self) -> None:
        """Kill all processes in the folders, and remove the folders."""
        remove(self.folders)


@dataclass(frozen=True, slots=True)
class CommandCgroup:
    """The cgroup of a command."""

    folder: Path
    joins: tuple[str, ...]
    """The files into which the command's first process writes its id to join the cgroup."""

    def join(self, pids: Iterable[int]) -> None:
        """Move processes into the cgroup."""
        for file, pid in itertools.product(self.joins, pids):
            Path(file).write_text(str(pid))

    def kill(self) -> bool:
        """Kill all processes in the cgroup. Returns False if a process is left after some seconds."""
        return _kill(self.folder)

    def remove(self) -> None:
        """Remove the folder, unless a process runs inside."""
        with contextlib.suppress(OSError):
            self.folder.rmdir()


def remove(folders: tuple[Path, ...]) -> None:
    """Kill all processes in the folders of a box, and remove the folders. Missing folders are no error."""
    for folder in folders:
        inner = [path for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []
        for path in (*inner, folder):
            _kill(path)
            with contextlib.suppress(OSError):
                path.rmdir()


def left(taken_names: Iterable[str]) -> list[Path]:
    """Empty cgroup folders of agentrl that are not new and have no box: the owner was killed before it recorded the
    box."""
    taken, own_paths = {*taken_names}, _own()
    places = {(_ROOT / controller / own_paths.get(controller, "").lstrip("/")) for controller in (*_CONTROLLERS, "")}
    places |= {_ROOT / controller for controller in (*_CONTROLLERS, "")}
    folders = [folder for place in places if place.is_dir() for folder in place.glob(f"{NAME}-*")]
    return sorted(folder for folder in folders if str(folder) not in taken and _is_left(folder))


def clear(folder: Path) -> bool:
    """Remove an empty folder with the commands' folders. Returns False if a process runs inside."""
    with contextlib.suppress(OSError):
        for path in (*(path for path in folder.iterdir() if path.is_dir()), folder):
            path.rmdir()
    return not folder.exists()


def _is_left(folder: Path) -> bool:
    try:
        old = time.time() - folder.stat().st_mtime > _NEW_S
        return old and not any(_pids(path) for path in (folder, *folder.iterdir()) if path.is_dir())
    except OSError:
        return False


def _kill(folder: Path) -> bool:
    with contextlib.suppress(OSError):  # so no process starts meanwhile
        (folder / "pids.max").write_text("0")
    with contextlib.suppress(OSError):  # version 2 kills all processes in one go
        (folder / "cgroup.kill").write_text("1")
    deadline = time.monotonic() + _DYING_S
    while pids := _pids(folder):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)
    return True


def _pids(folder: Path) -> list[int]:
    try:
        return [int(line) for line in (folder / "cgroup.procs").read_text().split()]
    except OSError:
        return []


def _version_1(name: str, spec: SandboxSpec) -> Cgroups | None:
    roots = {controller: _ROOT / controller for controller in _CONTROLLERS}
    if not all((root / "cgroup.procs").is_file() for root in roots.values()):
        return None
    limits = {
        "memory": {"memory.limit_in_bytes": spec.memory_mb << 20, "memory.memsw.limit_in_bytes": spec.memory_mb << 20},
        "cpu": {"cpu.cfs_period_us": _PERIOD_US, "cpu.cfs_quota_us": max(int(spec.cpus * _PERIOD_US), 1000)},
        "pids": {"pids.max": spec.pids},
    }
    own_paths = _own()
    folders: list[Path] = []
    for controller, root in roots.items():
        parents = dict.fromkeys((root / own_paths.get(controller, "").lstrip("/"), root))
        folder = next(
            (folder_made for parent in parents if (folder_made := _make(parent / name, limits[controller]))), None
        )
        if folder is None:
            remove(tuple(folders))
            return None
        folders.append(folder)
    return Cgroups(tuple(folders), folders[-1])


def _version_2(name: str, spec: SandboxSpec) -> Cgroups | None:
    if not (_ROOT / "cgroup.controllers").is_file():
        return None
    limits: dict[str, int | str] = {
        "memory.swap.max": 0,
        "memory.max": spec.memory_mb << 20,
        "pids.max": spec.pids,
        "cpu.max": f"{max(int(spec.cpus * _PERIOD_US), 1000)} {_PERIOD_US}",
    }
    for parent in dict.fromkeys((_ROOT / _own().get("", "").lstrip("/"), _ROOT)):
        with contextlib.suppress(OSError):
            (parent / "cgroup.subtree_control").write_text(" ".join(f"+{controller}" for controller in _CONTROLLERS))
        if folder := _make(parent / name, limits):
            return Cgroups((folder,), folder)
    return None


def _make(folder: Path, limits: Mapping[str, int | str]) -> Path | None:
    try:
        folder.mkdir()
    except OSError:
        return None
    try:
        for file, value in limits.items():
            if (folder / file).exists() or "sw" not in file:  # limits of swap are there only if swap is counted
                (folder / file).write_text(str(value))
    except OSError:
        folder.rmdir()
        return None
    return folder


def _own() -> dict[str, str]:
    """Controller -> cgroup of this process. The cgroup of version 2 has an empty name as its key."""
    paths = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            paths.update(dict.fromkeys(controllers.split(","), path))
    return paths
