"""DockerHosts: a back end that uses the engines of several hosts. The loss of a host affects only the sandboxes on this
host."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Self

from agentrl._util.concurrency import gather
from agentrl.errors import ConfigError, SandboxError, one_line
from agentrl_sandbox.backend import FoundSandbox, Leftover
from agentrl_sandbox.docker.backend import DockerBackend
from agentrl_sandbox.docker.sandbox import DockerSandbox
from agentrl_sandbox.machine import Machine
from agentrl_sandbox.reaper import paused, reaping, sweep
from agentrl_sandbox.spec import SandboxSpec

log = logging.getLogger("agentrl")

_EVERY_S = 5.0
"""Seconds between two checks whether an engine still responds."""
_ANSWER_S = 30.0
"""Seconds to wait for a response: an engine with a hundred sandboxes on a busy machine is slow."""
_SURE_S = 2.0
"""Seconds between a request without a response and a second request that confirms the loss: an engine's restart takes a
second."""
_AGAIN_S = 30.0
"""Seconds before a lost host is tried again."""
_ASIDE_S = 60.0
"""Seconds for which other hosts are preferred to a host that failed to create a sandbox."""


class EngineHost:
    """An engine, and this process's sandboxes there."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.backend = DockerBackend(name)
        self.boxes: set[PlacedSandbox] = set()
        """Sandboxes on this host that are open or are being opened."""
        self.abandoned: set[str] = set()
        """The ids of sandboxes that could not be removed after an error."""
        self.lost = "it was not tried yet"
        """Why the host is not used; empty while the host is used."""
        self.doubted = asyncio.Event()
        """Set if a request to this host failed. Until the engine has responded again, other hosts are preferred."""
        self._entered = False
        self._aside_until = 0.0

    async def connect(self, stack: AsyncExitStack) -> None:
        """Connect to the engine of this host. Raises SandboxError or ConfigError if no engine responds."""
        if self._entered:
            await self.backend.engine.connect()
        else:
            with paused():  # the hosts are swept together
                await stack.enter_async_context(self.backend)
            self._entered = True
        self.lost = self.backend.engine.gone = ""

    async def lose(self, why: str) -> None:
        """Stop using the host, and let all its sandboxes fail with this reason."""
        self.lost = self.backend.engine.gone = f"host {self.name} was lost: {why}"
        log.warning("%s; %d sandboxes are lost with it, and it is tried again later", self.lost, len(self.boxes))
        await asyncio.gather(*(box.condemn(self.lost) for box in list(self.boxes)))

    async def check(self) -> str:
        """Why the engine does not respond; empty if it responds."""
        problem = ""
        for _ in range(2):
            try:
                await self.backend.engine.ping(_ANSWER_S)
            except SandboxError as exc:
                problem = " ".join(str(exc).split())
                await asyncio.sleep(_SURE_S)
            else:
                return ""
        return problem

    async def clear_abandoned(self) -> None:
        """Remove the sandboxes in `abandoned`, which could not be removed earlier."""
        names = set(self.abandoned)
        with contextlib.suppress(SandboxError):
            await self.backend.remove(list(names))
            self.abandoned -= names

    def set_aside(self) -> None:
        """Prefer other hosts for a while, as this host failed to create a sandbox."""
        self._aside_until = time.monotonic() + _ASIDE_S
        self.doubted.set()

    def rank(self, spec: SandboxSpec) -> tuple[bool, float]:
        """A key to sort hosts by: the host with the smallest key gets the next sandbox."""
        is_last_choice = self.doubted.is_set() or time.monotonic() < self._aside_until
        return is_last_choice, len(self.boxes) / self.backend.machine.room(spec)


class PlacedSandbox(DockerSandbox):
    """A container on the host with the least load. The host is chosen when the sandbox is opened. After a failure,
    the next host is tried."""

    def __init__(self, spec: SandboxSpec, hosts: DockerHosts, first: EngineHost) -> None:
        super().__init__(spec, *first.backend.parts)
        self._hosts, self.engine_host = hosts, first
        self._opening: asyncio.Task[None] | None = None

    async def _open(self) -> None:
        tried: list[EngineHost] = []
        failure: SandboxError | None = None
        while True:
            host = self._hosts.choose(self.spec, tried, failure)
            self.engine_host = host
            self._place(*host.backend.parts)
            self.container_state.on_failure = host.doubted.set  # the host is checked at once
            host.boxes.add(self)
            try:
                await self._open_here()
                return
            except SandboxError as exc:
                await self._close()
                host.set_aside()
                tried.append(host)
                failure = exc

    async def _open_here(self) -> None:
        """Open the sandbox on the chosen host. Raises SandboxError, also if the host is lost meanwhile."""
        self._opening = opening = asyncio.create_task(super()._open())
        try:
            await opening
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self.engine_host.lost or (task is not None and task.cancelling()):
                raise
            raise SandboxError(f"sandbox {self.sandbox_id}: {self.engine_host.lost}") from None

    async def condemn(self, why: str) -> None:
        """See `DockerSandbox.condemn`. A sandbox being opened moves to the next host."""
        if self._opening is not None:
            self._opening.cancel()
        await super().condemn(why)

    @property
    def doubtful(self) -> bool:
        """Whether the sandbox must be checked before use, although it worked a moment ago."""
        return (
            bool(self.engine_host.lost) or self.engine_host.doubted.is_set() or self.container_state.ended is not None
        )

    async def _close(self) -> None:
        try:
            await super()._close()
        finally:
            self.engine_host.boxes.discard(self)

    async def _remove(self) -> bool:
        removed = await super()._remove()
        if not removed:
            self.engine_host.abandoned.add(self.sandbox_id)
        return removed


class DockerHosts:
    """A `Backend` on several engines: `docker:ssh://user@one,ssh://user@two`.

    A host is an address (unix://, tcp:// or ssh://) or the name of a context of Docker. Each new sandbox goes to the
    least loaded host, by cores and memory. Entering raises SandboxError if no host responds. A host without a
    response is logged, and tried again while the back end is open.
    """

    name = "docker"

    def __init__(self, hosts: str) -> None:
        self._names = [name.strip() for name in hosts.split(",")]
        if len(set(self._names)) < len(self._names) or not all(self._names):
            raise ConfigError(f"docker:{hosts}: write each host once, with commas between them")
        self.engine_hosts: list[EngineHost] = []
        self._watchers: list[asyncio.Task[None]] = []
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self.engine_hosts = [EngineHost(name) for name in self._names]
        async with AsyncExitStack() as stack:
            await gather(self._try(host, stack) for host in self.engine_hosts)
            missing = [f"{host.name}: {host.lost}" for host in self.engine_hosts if host.lost]
            if len(missing) == len(self.engine_hosts):
                raise SandboxError(f"no host of sandboxes answers ({'; '.join(missing)})")
            for problem in missing:
                log.warning("a host of sandboxes does not answer, and is tried again later: %s", problem)
            stack.callback(self._report_abandoned)
            await stack.enter_async_context(reaping(self))
            self._stack = stack.pop_all()
        self._watchers = [
            asyncio.create_task(self._watch(host), name=f"docker-host {host.name}") for host in self.engine_hosts
        ]
        return self

    async def __aexit__(self, *exc: object) -> None:
        for watcher in self._watchers:
            watcher.cancel()
        await asyncio.wait(self._watchers)
        try:
            await self._stack.aclose()
        finally:
            self.engine_hosts = []

    def sandbox(self, spec: SandboxSpec) -> DockerSandbox:
        """See `Backend.sandbox`."""
        first = self.choose(spec)
        for host in self._living:
            host.backend.check(spec)
        if spec.sockets and not all(host.backend.engine.is_local for host in self.engine_hosts):
            raise ConfigError(
                "a socket of this machine cannot be mounted on another host; reach the gateway or the retriever over "
                "the network, with network: open"
            )
        return PlacedSandbox(spec, self, first)

    def choose(
        self, spec: SandboxSpec, without: Sequence[EngineHost] = (), failure: SandboxError | None = None
    ) -> EngineHost:
        """The host with the least load. If no host is left, raises `failure`, or SandboxError with the reasons."""
        candidates = [host for host in self._living if host not in without]
        if candidates:
            return min(candidates, key=lambda host: host.rank(spec))
        if failure is not None:
            raise failure
        raise SandboxError("; ".join(host.lost for host in self.engine_hosts) or "the docker back end is not open")

    async def prepare(self, image: str) -> None:
        """See `Backend.prepare`. The image is prepared on each host; no error is raised if this works on any host."""
        living = self._living
        results = await asyncio.gather(*(host.backend.prepare(image) for host in living), return_exceptions=True)
        failed = [(host, error) for host, error in zip(living, results, strict=True) if error is not None]
        for host, error in failed:
            if len(failed) == len(living) or not isinstance(error, SandboxError):
                raise error
            host.set_aside()
            log.warning("host %s has no image %s: %s", host.name, image or "(base)", one_line(error))
        if not living:
            self.choose(SandboxSpec())

    @property
    def machine(self) -> Machine:
        """See `HasMachine.machine`: the cores and memory of all usable hosts together."""
        machines = [host.backend.machine for host in self._living]
        return Machine(
            sum(host_machine.cores for host_machine in machines),
            sum(host_machine.memory_mb for host_machine in machines),
        )

    async def list(self) -> Sequence[FoundSandbox]:
        """See `Backend.list`. A lost host is left out."""
        return [
            dataclasses.replace(sandbox, host=host.name)
            for host in self._living
            for sandbox in await host.backend.list()
        ]  # fmt: skip

    async def remove(self, sandbox_ids: Sequence[str]) -> None:
        """See `Backend.remove`."""
        for host in self._living:
            here = {sandbox.sandbox_id for sandbox in await host.backend.list()}
            await host.backend.remove([sandbox_id for sandbox_id in sandbox_ids if sandbox_id in here])

    async def leftovers(self) -> Sequence[Leftover]:
        """See `DockerBackend.leftovers`."""
        return [leftover for host in self._living for leftover in await host.backend.leftovers()]

    async def clear(self, leftovers: Sequence[Leftover]) -> Sequence[Leftover]:
        """See `HasLeftovers.clear`."""
        names, cleared = {leftover.name for leftover in leftovers}, list[Leftover]()
        for host in self._living:
            here = [leftover for leftover in await host.backend.leftovers() if leftover.name in names]
            cleared += await host.backend.clear(here)
        return cleared

    @property
    def _living(self) -> Sequence[EngineHost]:
        return [host for host in self.engine_hosts if not host.lost]

    async def _try(self, host: EngineHost, stack: AsyncExitStack) -> None:
        try:
            await host.connect(stack)
        except SandboxError as exc:
            host.lost = " ".join(str(exc).split())

    async def _watch(self, host: EngineHost) -> None:
        """Check a host regularly, to notice its loss and its return."""
        while True:
            if host.lost:
                await asyncio.sleep(_AGAIN_S)
                await self._try(host, self._stack)
                if not host.lost:
                    log.warning("host %s answers, and is used again", host.name)
                    await host.clear_abandoned()
                    await sweep(host.backend)
            else:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(host.doubted.wait(), _EVERY_S)
                if why := await host.check():
                    await host.lose(why)
                elif host.abandoned:
                    await host.clear_abandoned()
                host.doubted.clear()

    def _report_abandoned(self) -> None:
        for host in self.engine_hosts:
            if host.abandoned:
                log.warning(
                    "%d sandboxes on host %s could not be removed; the next run that reaches it removes them",
                    len(host.abandoned),
                    host.name,
                )
