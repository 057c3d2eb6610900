"""BubblewrapBackend: sandboxes of Linux namespaces, for machines without a container engine."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

from agentrl.errors import SandboxError
from agentrl_sandbox.backend import FoundSandbox, Leftover
from agentrl_sandbox.bubblewrap import cgroups, registry, root, seccomp
from agentrl_sandbox.bubblewrap.box import Box
from agentrl_sandbox.bubblewrap.cgroups import Cgroups
from agentrl_sandbox.bubblewrap.sandbox import BubblewrapSandbox
from agentrl_sandbox.command import finish
from agentrl_sandbox.reaper import reaping
from agentrl_sandbox.spec import SandboxSpec

log = logging.getLogger("agentrl")


class BubblewrapBackend:
    """A `Backend` based on the system packages bubblewrap (0.8 or newer) and libseccomp2, without a daemon.

    An image is a folder with a root file system, or a tar file of a root file system. A tar file is unpacked once, and
    again if its content changes. Without an image, the programs of this machine's /usr are used.
    """

    name = "bubblewrap"

    def __init__(self) -> None:
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        if sys.platform != "linux" or shutil.which("bwrap") is None:
            raise SandboxError("there is no bwrap; on Linux, install the system package bubblewrap, or use docker")
        seccomp.program()
        await _probe()
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(reaping(self))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    def sandbox(self, spec: SandboxSpec) -> BubblewrapSandbox:
        """See `Backend.sandbox`."""
        root.check(spec)
        return BubblewrapSandbox(spec)

    async def prepare(self, image: str) -> None:
        """See `Backend.prepare`."""
        if image:
            await asyncio.to_thread(root.resolve, image)

    async def list(self) -> Sequence[FoundSandbox]:
        """See `Backend.list`."""
        return [entry.found() for entry in await asyncio.to_thread(registry.entries)]

    async def remove(self, sandbox_ids: Sequence[str]) -> None:
        """See `Backend.remove`."""
        for entry in await asyncio.to_thread(registry.entries):
            if entry.sandbox_id in sandbox_ids:
                await asyncio.to_thread(registry.end, entry)

    async def leftovers(self) -> Sequence[Leftover]:
        """See `HasLeftovers.leftovers`: the cgroups without a box."""
        folders = [folder for entry in await asyncio.to_thread(registry.entries) for folder in entry.cgroups]
        empty = await asyncio.to_thread(cgroups.left, folders)
        return [Leftover("cgroup", str(folder), "empty") for folder in empty]

    async def clear(self, leftovers: Sequence[Leftover]) -> Sequence[Leftover]:
        """See `HasLeftovers.clear`."""
        return [leftover for leftover in leftovers if await asyncio.to_thread(cgroups.clear, Path(leftover.name))]


async def _probe() -> None:
    """Start a box as a test. Raises SandboxError, with the remedy, if this machine does not allow boxes."""
    files, box = root.etc(), Box()
    try:
        await box.start(root.arguments(SandboxSpec(), files), files)
    except SandboxError as exc:
        raise SandboxError(
            f"{exc}; it needs bubblewrap 0.8 and user namespaces: see kernel.unprivileged_userns_clone, "
            "kernel.apparmor_restrict_unprivileged_userns and user.max_user_namespaces, or use docker"
        ) from None
    finally:
        for file in files:
            os.close(file)
        await finish(box.end())
    if (group := Cgroups.make(f"{cgroups.NAME}-probe-{os.getpid()}", SandboxSpec())) is None:
        log.warning(
            "bubblewrap: no cgroup can be made, so memory and processes are limited for each process alone; "
            "run as root, or in a scope of systemd with Delegate=yes"
        )
    else:
        group.remove()
