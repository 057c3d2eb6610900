"""A container as a sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import io
import logging
import posixpath
import secrets
import socket
import tarfile
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from aiodocker import DockerError

from agentrl.errors import ConfigError, SandboxError
from agentrl.sandbox import OnOutput, SandboxKilledError, Snapshot
from agentrl_sandbox.base import ShellSandbox
from agentrl_sandbox.command import finish
from agentrl_sandbox.docker.container import Image, configuration, identity
from agentrl_sandbox.docker.disk import DiskWatch
from agentrl_sandbox.docker.egress import listener_in
from agentrl_sandbox.docker.engine import DockerClient
from agentrl_sandbox.docker.images import SOWN, Images, sowing
from agentrl_sandbox.docker.labelled import remove_container, remove_groups
from agentrl_sandbox.docker.process import DockerProcess
from agentrl_sandbox.docker.readiness import ServiceStart
from agentrl_sandbox.docker.services import SiblingContainers
from agentrl_sandbox.docker.state import ContainerState
from agentrl_sandbox.docker.wrapper import new_token, wrapped
from agentrl_sandbox.services import MAIN
from agentrl_sandbox.spec import SandboxSpec

T = TypeVar("T")
log = logging.getLogger("agentrl")

_START_S = 60.0
"""Seconds for a command to begin. A start on an idle machine takes a twentieth of a second."""
_HEADERS = 64 << 10
"""The most bytes of a file's tar archive in addition to the content."""


class DockerSandbox(ShellSandbox):
    """A sandbox that is a container, possibly with containers of services. Commands run through the engine's exec.
    `DockerBackend.sandbox` creates the sandbox."""

    kind: ClassVar[str] = "docker"
    has_services: ClassVar[bool] = True

    def __init__(self, spec: SandboxSpec, engine: DockerClient, images: Images, watch: DiskWatch) -> None:
        super().__init__(spec, f"docker-{secrets.token_hex(8)}")
        self._processes: set[DockerProcess] = set()
        self._place(engine, images, watch)

    def _place(self, engine: DockerClient, images: Images, watch: DiskWatch) -> None:
        """Set the engine on which the sandbox will be opened."""
        self._engine, self._images, self._watch = engine, images, watch
        self.container_state = ContainerState(self.spec, self.sandbox_id, engine)
        self._requests: set[asyncio.Task[Any]] = set()
        self.siblings = (
            SiblingContainers(self.sandbox_id, self.spec, self.spec.services, engine, images)
            if self.spec.services is not None
            else None
        )
        self._condemned = False

    async def _open(self) -> None:
        image = await self._images.owned(self.spec)
        with self.container_state.telling():
            try:
                if self.siblings is not None:
                    await self.siblings.prepare(image, self._whole)
                await self._create(image)
            except DockerError as exc:
                if exc.status != 404:  # the image has been removed meanwhile
                    raise
                self._images.forget()
                if self.siblings is not None:  # the next sandbox makes the missing image
                    raise
                image = await self._images.owned(self.spec)
                await self._create(image)
            if not self.spec.read_only:
                self._watch.add(self.sandbox_id, self.spec.disk_mb, self.container_state.kill_all)
            await self._whole(self.container_state.container.start())
            if self.siblings is not None:
                for name, service in self.siblings.group.services.items():
                    kill = functools.partial(self._kill_for, name)
                    self._watch.add(self.siblings.name(name), service.disk_mb, kill)
                await ServiceStart(self.siblings, self._whole).run()
        if image.seed:
            await self._sow()

    async def _create(self, image: Image) -> None:
        body = configuration(self.spec, self.sandbox_id, image, self._engine.host)
        if self.siblings is not None:
            host_config = self.siblings.main()
            body["HostConfig"] |= {**host_config, "Mounts": [*body["HostConfig"]["Mounts"], *host_config["Mounts"]]}
            body["NetworkingConfig"] = self.siblings.endpoints(MAIN, self.siblings.group.main)
        await self._whole(self._engine.create(body, self.sandbox_id))
        if self.siblings is not None:
            await self.siblings.place(MAIN, self.siblings.group.main, self._whole)

    async def _whole(self, request: Coroutine[Any, Any, T]) -> T:
        """Send a request that creates an object. If the caller is cancelled, the request continues, and `_close` waits
        for its end: the engine would complete the request anyway, perhaps after the removal."""
        task = asyncio.create_task(request)
        self._requests.add(task)
        return await asyncio.shield(task)

    async def _kill_for(self, service: str, why: str) -> None:
        await self.container_state.kill_all(f"its service {service}: {why}")

    async def _listener(self) -> socket.socket:
        with self.container_state.telling():
            return await listener_in(self.sandbox_id, self.spec, self._engine, self._images)

    async def _sow(self) -> None:
        """Copy the image's content of the work folder into the sandbox's work folder, which is in memory."""
        output = await self.container_state.output_of(sowing(self.spec.workdir), SOWN, user=identity(self.spec.user))
        if not output.endswith(SOWN):
            raise SandboxError(
                f"sandbox {self.sandbox_id}: the image's content of {self.spec.workdir} cannot be copied there: "
                f"{output[-300:]}; raise disk_mb, or set read_only: false"
            )

    async def _close(self) -> None:
        """Remove the sandbox. If the engine does not respond, the reaper of a later run removes the container."""
        self._watch.drop(self.sandbox_id)
        for name in self.siblings.names if self.siblings is not None else ():
            self._watch.drop(name)
        if self._requests:
            for request in self._requests:
                if self._engine.gone:
                    request.cancel()  # no answer comes
            await asyncio.wait(self._requests)
            for request in self._requests:
                if not request.cancelled():
                    request.exception()  # raised at the request
            await self._remove()
        await asyncio.gather(*(process.abandon() for process in list(self._processes)))

    async def _remove(self) -> bool:
        """Remove the container. Returns False if the container may still exist."""
        for wait_s in (0.5, 2.0, 5.0, 0.0):
            if self._engine.gone:
                return False
            try:
                with self.container_state.telling():
                    if self.siblings is None:
                        await remove_container(self._engine, self.sandbox_id)
                    else:
                        await remove_groups(self._engine, [self.sandbox_id])
                return True
            except SandboxError as exc:
                error = exc
            await asyncio.sleep(wait_s)
        log.warning("%s; the container is left to the reaper", error)
        return False

    async def read_stored(self, sandbox_path: str, *, max_bytes: int) -> bytes:
        """See `ShellSandbox.read_stored`."""
        self._admit(None)
        path = self._file(sandbox_path)
        if not self.spec.read_only and not any(f"{path}/".startswith(f"{folder}/") for folder in ("/tmp", "/dev")):
            with self.container_state.telling():
                return await _stored(self._engine, self.sandbox_id, path, max_bytes)
        return await super().read_stored(sandbox_path, max_bytes=max_bytes)  # the engine does not see folders in memory

    async def snapshot(self) -> Snapshot:
        """See `Sandbox.snapshot`. Raises ConfigError if the sandbox has services: a service's state cannot be saved."""
        if self.siblings is not None:
            raise ConfigError(
                f"sandbox {self.sandbox_id} has services ({', '.join(self.siblings.group.services)}), whose data no "
                "snapshot holds: its episode cannot be parked or branched, and starts again instead"
            )
        return await super().snapshot()

    # Commands

    async def _spawn(
        self, argv: Sequence[str], *, user: str, env: Mapping[str, str], cwd: str, stdin: bool, sink: OnOutput
    ) -> DockerProcess:
        self.container_state.check_alive()
        starting = asyncio.create_task(self._begin(argv, user, env, cwd, stdin, sink))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            await finish(self._unwanted(starting))
            raise

    async def _begin(
        self, argv: Sequence[str], user: str, env: Mapping[str, str], cwd: str, stdin: bool, sink: OnOutput
    ) -> DockerProcess:
        token = new_token()
        with self.container_state.telling():
            try:
                command = await self.container_state.container.exec(
                    wrapped(argv, token, cwd),
                    stdin=stdin,
                    user=identity(user),
                    environment=[f"{name}={value}" for name, value in env.items()],
                    workdir="/",
                )
                stream = command.start()
                async with asyncio.timeout(_START_S):
                    await stream.__aenter__()
            except DockerError:
                await self.container_state.ensure_alive()  # raises the cause, if the container is gone
                raise
        process = DockerProcess(self.container_state, command, stream, token, user, sink)
        self._processes.add(process)
        process.when_done(self._processes.discard)
        with self.container_state.telling():
            async with asyncio.timeout(_START_S):
                await process.begun()
        return process

    async def condemn(self, why: str) -> None:
        """Let running and later requests raise SandboxError with this reason, as the engine is lost."""
        self.container_state.end(f"sandbox {self.sandbox_id}: {why}")
        self._condemned = True
        await asyncio.gather(*(process.abandon() for process in list(self._processes)))

    def _check_still_open(self) -> None:
        if self._condemned:  # the engine's loss ended the commands
            self.container_state.check_alive()
        super()._check_still_open()

    async def _unwanted(self, starting: asyncio.Task[DockerProcess]) -> None:
        await asyncio.wait([starting])
        if not starting.cancelled() and starting.exception() is None:
            await starting.result().kill()

    async def ping(self) -> None:
        """See `Sandbox.ping`. Asks the engine, which responds within milliseconds; a command would take 50 ms."""
        self._admit(None)
        with self.container_state.telling():
            await self.container_state.look()
            self.container_state.check_alive()
            if await self.container_state.used_up() == "process":
                raise SandboxKilledError(self.container_state.no_room())


async def _stored(engine: DockerClient, container: str, path: str, max_bytes: int) -> bytes:
    """The first `max_bytes` of a plain file. The engine reads the file, and no program of the container runs. Raises
    FileNotFoundError for a missing file."""
    sent = bytearray()
    try:
        query = engine.docker._query
        async with query(f"containers/{container}/archive", "GET", params={"path": path}) as response:
            async for piece in response.content.iter_chunked(1 << 16):
                sent += piece
                if len(sent) > max_bytes + _HEADERS:
                    break
    except DockerError as exc:
        if exc.status != 404:
            raise
        raise FileNotFoundError(path) from exc
    with contextlib.suppress(tarfile.TarError), tarfile.open(fileobj=io.BytesIO(bytes(sent)), mode="r:") as archive:
        member = archive.next()
        if member is not None and member.isreg() and member.name == posixpath.basename(path):
            start = member.offset_data
            return bytes(sent[start : start + min(member.size, max_bytes)])
    raise FileNotFoundError(path)
