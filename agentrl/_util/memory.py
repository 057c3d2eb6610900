"""How much memory this machine has left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def free_ram(cgroup: Path = _CGROUP) -> int:
    """Bytes of free memory of this machine, or of this container if it has less. Raises OSError if there is no
    /proc."""
    available = Path("/proc/meminfo").read_text(encoding="ascii").split("MemAvailable:")[1].split()[0]
    return min([int(available) * 1024, *_left_to_the_container(cgroup)])


def _left_to_the_container(cgroup: Path) -> Iterator[int]:
    """Bytes of free memory of the cgroup, if the cgroup has a limit. Cached files count as free: the kernel drops them
    first."""
    try:
        bound, used, parts = (
            (cgroup / name).read_text(encoding="ascii") for name in ("memory.max", "memory.current", "memory.stat")
        )
    except OSError:
        return
    if bound.strip() != "max":
        cached = next((int(line.split()[1]) for line in parts.splitlines() if line.startswith("inactive_file ")), 0)
        yield max(int(bound) - int(used) + cached, 0)
