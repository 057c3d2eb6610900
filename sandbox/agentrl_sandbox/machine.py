"""The cores and the memory for sandboxes, of this machine or of a remote machine."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

from agentrl_sandbox.spec import SandboxSpec

_SHARING = 4
"""Sandboxes per core: an agent's sandbox idles while its model thinks."""
_SHARE_OF_MEMORY = 0.75
"""The share of the memory for sandboxes. The rest is for this program, and for the engine."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine for sandboxes."""

    cores: float
    memory_mb: int

    def room(self, spec: SandboxSpec) -> int:
        """How many sandboxes of a spec the machine can run at the same time. At least 2: an episode and its grading."""
        by_memory = _SHARE_OF_MEMORY * self.memory_mb / spec.total_memory_mb
        return max(2, int(min(_SHARING * self.cores / spec.total_cpus, by_memory)))


def here() -> Machine:
    """This machine, with the limits of this process."""
    return Machine(cores(), memory_mb())


def room(spec: SandboxSpec) -> int:
    """How many sandboxes of a spec this machine can run at the same time."""
    return here().room(spec)


def needed(spec: SandboxSpec, sandboxes: int) -> tuple[int, int]:
    """The cores, and the memory in MiB, that this many sandboxes need."""
    return math.ceil(sandboxes * spec.total_cpus / _SHARING), math.ceil(
        sandboxes * spec.total_memory_mb / _SHARE_OF_MEMORY
    )


def cores(cgroups: Path = Path("/sys/fs/cgroup")) -> float:
    """The CPU cores that this process may use. In a container, the number may be a fraction."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota, period = [*_words(cgroups / "cpu.max"), "", ""][:2]  # version 2 of cgroups, else 1
    if not quota:
        quota = "".join(_words(cgroups / "cpu/cpu.cfs_quota_us"))
        period = "".join(_words(cgroups / "cpu/cpu.cfs_period_us"))
    limit = int(quota) / int(period) if quota.isdecimal() and period.isdecimal() and int(period) else math.inf
    return min(float(available), limit)


def memory_mb(cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """The total memory for this process in MiB, used and free."""
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [*_words(cgroups / "memory.max"), *_words(cgroups / "memory/memory.limit_in_bytes")]
    return min([installed, *(int(limit) for limit in limits if limit.isdecimal())]) >> 20


def _words(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").split()
    except OSError:
        return []
