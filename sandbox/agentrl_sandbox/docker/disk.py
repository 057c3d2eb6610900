"""Limit the bytes that sandboxes with a writable root write to the engine's disk.

An engine limits a container's disk only on XFS with project quotas (`Host.quotas`). So the engine is also asked
regularly how many bytes each of these sandboxes has written. A sandbox with more than `disk_mb` is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from agentrl.errors import SandboxError, one_line
from agentrl_sandbox import owners
from agentrl_sandbox.docker.container import DISK, OWNER
from agentrl_sandbox.docker.engine import DockerClient

log = logging.getLogger("agentrl")

_EVERY_S = 1.0
"""Seconds between two measurements. In this time, half a gigabyte or more can be written."""
_OFTEN_S = 0.2
"""The pause once a sandbox has used half of the limit: the next measurement must not come too late."""
_REST = 4
"""The shortest pause, as a multiple of the duration of a measurement. So measuring takes at most a fifth of the
engine's time."""


class DiskWatch:
    """Watches the sandboxes of a back end. While sandboxes exist, a single request measures all of them."""

    def __init__(self, engine: DockerClient) -> None:
        self._engine = engine
        self._watched: dict[str, tuple[int, Callable[[str], Awaitable[None]]]] = {}
        self._some = asyncio.Event()
        self._warned = False

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._run(), name="docker-disk-watch")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    def add(self, sandbox_id: str, disk_mb: int, kill: Callable[[str], Awaitable[None]]) -> None:
        """Watch a sandbox. When it has written more than `disk_mb` MiB, `kill` is called with the reason."""
        self._watched[sandbox_id] = (disk_mb, kill)
        self._some.set()

    def drop(self, sandbox_id: str) -> None:
        self._watched.pop(sandbox_id, None)
        if not self._watched:
            self._some.clear()

    async def _run(self) -> None:
        while True:
            await self._some.wait()
            began = time.monotonic()
            try:
                fullest = await self._look()
            except SandboxError as exc:
                fullest = 0.0
                if not self._warned:
                    log.warning("what sandboxes write to the disk cannot be watched: %s", one_line(exc))
                self._warned = True
            took = time.monotonic() - began
            await asyncio.sleep(max(_OFTEN_S if fullest > 0.5 else _EVERY_S, _REST * took))

    async def _look(self) -> float:
        """Measure all sandboxes. Returns the largest used share of a limit."""
        shares = [0.0]
        for sandbox_id, used in (await self._written()).items():
            disk_mb, kill = self._watched.get(sandbox_id, (0, None))
            if kill is None:
                continue
            shares.append(used / (disk_mb << 20))
            if shares[-1] > 1:
                await kill(f"its disk was used up (disk_mb={disk_mb}): it wrote {used >> 20} MiB")
                self.drop(sandbox_id)
        return max(shares)

    async def _written(self) -> dict[str, int]:
        """For each container of this process's sandboxes, the bytes that it has written to its root."""
        labels = json.dumps({"label": [DISK, f"{OWNER}={owners.current()}"]})
        with self._engine.telling("the sizes of sandboxes"):
            containers = await self._engine.docker._query_json(
                "containers/json", params={"size": "1", "filters": labels}
            )
        return {container["Names"][0].lstrip("/"): int(container.get("SizeRw") or 0) for container in containers}
