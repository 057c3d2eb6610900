"""E2BBackend: sandboxes of a service with E2B's protocol."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Self

from agentrl.errors import ConfigError, SandboxError, one_line
from agentrl.sandbox import MachineSnapshot, Sandbox
from agentrl_sandbox.backend import FoundSandbox
from agentrl_sandbox.hosted.sandbox import HostedSandbox
from agentrl_sandbox.owners import current, is_gone, run_name
from agentrl_sandbox.reaper import reaping
from agentrl_sandbox.spec import SandboxSpec

try:
    import e2b

    from agentrl_sandbox.e2b.machine import KEEP_S, KEPT, NAME, E2BMachine, forget, kept, listed, patiently, unwanted
except ImportError as exc:
    raise ConfigError(f'e2b needs the package e2b: pip install "agentrl-sandbox[e2b]" ({exc})') from exc

log = logging.getLogger("agentrl")

SANDBOX, OWNER, RUN, DEADLINE, IMAGE = (
    *("agentrl.sandbox", "agentrl.owner", "agentrl.run"),
    *("agentrl.deadline", "agentrl.image"),
)
"""The keys of each machine's metadata: sandbox id, owner, run, deadline and image."""
_KEY = "E2B_API_KEY"
_AT_ONCE = 16
"""The most parallel requests that remove machines or extend their lives."""
_REFRESH_S = KEEP_S / 4


@dataclass(frozen=True, slots=True)
class E2BSnapshot(MachineSnapshot):
    """A machine that the service has saved as the template `image`, with its running processes."""

    async def release(self) -> None:
        """See `MachineSnapshot.release`."""
        try:
            await forget(self.image)
        except SandboxError as exc:  # a back end's sweep tries again
            log.debug("machine %s is not removed yet: %s", self.image, exc)


class E2BSandbox(HostedSandbox):
    """A machine of a service with E2B's protocol. If the service supports snapshots, a machine can be paused,
    forked and saved with all its processes.

    No command may run during these calls. They raise SandboxError if the service does not support snapshots.
    """

    kind = "e2b"
    cuts_network = True

    def __init__(self, spec: SandboxSpec, machine: E2BMachine) -> None:
        super().__init__(spec, machine)
        self.machine = machine

    async def pause(self) -> None:
        """Stop all processes, and let the service save them with memory and files. A paused machine uses no cores."""
        self._admit(None)
        await self._asked(self.machine.pause(), "pause")

    async def resume(self) -> None:
        """Continue after `pause`."""
        self._admit(None)
        await self._asked(self.machine.resume(), "resume")

    async def fork(self, count: int = 1) -> list[E2BSandbox]:
        """Copies of the sandbox with the same processes, memory and files. The copies are open: close each copy."""
        self._admit(None)
        machines = await self._asked(self.machine.fork(count), "fork")
        boxes = [E2BSandbox(self.spec, machine) for machine in machines]
        try:
            await asyncio.gather(*(box.__aenter__() for box in boxes))
        except BaseException:
            await asyncio.gather(*(box.close() for box in boxes))
            raise
        return boxes

    async def keep(self) -> E2BSnapshot:
        """See `KeepsMachines.keep`."""
        self._admit(None)
        until = time.time() + self.spec.lifetime_s
        name = f"agentrl-{until:.0f}-{secrets.token_hex(8)}"
        await self._asked(self.machine.keep(name), "snapshot")
        return E2BSnapshot("e2b", name, until)


class E2BBackend:
    """A `Backend` at a service with E2B's protocol. The key is in the environment variable E2B_API_KEY. A server other
    than E2B's also needs E2B_DOMAIN, or E2B_API_URL and E2B_SANDBOX_URL.

    A machine has its owner, run and deadline as metadata, so every process can list every machine. A machine expires
    some minutes after the owner's last request to extend its life. A saved machine has the deadline in its name, and
    stays until a reaper removes it.
    """

    name = "e2b"

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self._open: list[E2BSandbox] = []
        self._keeps = False

    async def __aenter__(self) -> Self:
        """See `Backend`. Raises SandboxError, with the remedy, without a key, or if the service rejects the key."""
        if not os.environ.get(_KEY):
            raise SandboxError(f"e2b: {_KEY} is not set; a key of E2B is at e2b.dev/dashboard, else ask your server")
        await self.list()
        self._keeps = await kept() is not None
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._remove_unwanted)
            await stack.enter_async_context(reaping(self))
            refreshing = asyncio.create_task(self._keep_refreshing(), name="e2b-refresh")
            stack.callback(refreshing.cancel)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    def sandbox(self, spec: SandboxSpec) -> E2BSandbox:
        """See `Backend.sandbox`."""
        metadata = {
            SANDBOX: "1",
            NAME: secrets.token_hex(12),
            OWNER: current(),
            RUN: run_name(),
            DEADLINE: f"{time.time() + spec.lifetime_s:.0f}",
            IMAGE: spec.image,
        }
        box = E2BSandbox(spec, E2BMachine(spec.image, metadata, spec.lifetime_s, spec.network == "open"))
        self._open = [open_box for open_box in self._open if not open_box.is_closed] + [box]
        return box

    async def prepare(self, image: str) -> None:
        """Do nothing: the service has its templates, and `sandbox` reports a missing template."""

    @property
    def keeps_machines(self) -> bool:
        """See `KeepsMachines.keeps_machines`. True for a service with a list of snapshots."""
        return self._keeps

    async def keep(self, sandbox: Sandbox) -> E2BSnapshot:
        """See `KeepsMachines.keep`."""
        if not isinstance(sandbox, E2BSandbox):
            raise ConfigError(f"sandbox {sandbox.sandbox_id} is not one of back end e2b")
        return await sandbox.keep()

    async def list(self) -> Sequence[FoundSandbox]:
        """See `Backend.list`: running and saved machines. Raises SandboxError if the service does not answer."""
        sandboxes = [_found(info) for info in await patiently(lambda: listed({SANDBOX: "1"}))]
        for name, until in (await kept() or {}).items():
            gone = time.time() > until or name in unwanted
            sandboxes.append(FoundSandbox(f"e2b-{name}", name, "", "", until, gone))
        return sandboxes

    async def remove(self, sandbox_ids: Sequence[str]) -> None:
        """See `Backend.remove`. All removals are tried; then SandboxError is raised for the first failure."""
        for box in self._open:
            if box.sandbox_id in sandbox_ids:
                await box.close()
        ids = [name.removeprefix("e2b-") for name in sandbox_ids]
        for result in await _each(ids, lambda name: forget(name) if KEPT.match(name) else _end(name)):
            if isinstance(result, BaseException):
                raise result

    async def _remove_unwanted(self) -> None:
        """Remove the saved machines in `unwanted`. By now this process has closed their copies."""
        for result in await _each(list(unwanted), forget):
            if isinstance(result, SandboxError):
                log.warning("a kept machine stays until its time is over, or `agentrl sandbox gc`: %s", result)

    async def _keep_refreshing(self) -> None:
        while True:
            await asyncio.sleep(_REFRESH_S)
            await self._refresh()

    async def _refresh(self) -> None:
        """Extend the lives of the open machines. A machine that has ended is no error here: its next command fails."""
        boxes = [entry for entry in self._open if entry.is_open]
        for box, result in zip(boxes, await _each(boxes, lambda entry: entry.machine.refresh()), strict=True):
            if isinstance(result, BaseException) and box.is_open:
                log.warning("sandbox %s may end early: %s", box.sandbox_id, one_line(result))


async def _end(machine: str) -> None:
    await patiently(lambda: e2b.AsyncSandbox.kill(machine))


def _found(info: Any) -> FoundSandbox:
    """The entry of a machine in the service's list. Its metadata is not trusted, as others may have written it."""
    metadata = info.metadata
    owner, deadline = metadata.get(OWNER, ""), metadata.get(DEADLINE, "")
    until = float(deadline) if deadline.isdecimal() else info.end_at.timestamp()
    image = metadata.get(IMAGE) or info.template_id
    return FoundSandbox(f"e2b-{info.sandbox_id}", image, owner, metadata.get(RUN, ""), until, is_gone(owner, until))


async def _each(items: Iterable[Any], act: Callable[[Any], Awaitable[Any]]) -> list[Any]:
    """The result or exception of `act` for each item. A limited number of calls run at the same time."""
    slots = asyncio.Semaphore(_AT_ONCE)

    async def one(item: Any) -> Any:
        async with slots:
            return await act(item)

    return await asyncio.gather(*(one(item) for item in items), return_exceptions=True)
