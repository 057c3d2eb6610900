"""A container as a sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import logging
import secrets
import socket
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeVar

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
from agentrl_sandbox.docker.labelled import remove_groups
from agentrl_sandbox.docker.process import DockerProcess
from agentrl_sandbox.docker.readiness import ServiceStart
from agentrl_sandbox.docker.services import SiblingContainers
from agentrl_sandbox.docker.stored import stored
from agentrl_sandbox.docker.wrapper import KILLED, killer, new_token, wrapped
from agentrl_sandbox.services import MAIN
from agentrl_sandbox.spec import SandboxSpec

T = TypeVar("T")
log = logging.getLogger("agentrl")

_START_S = 60.0
"""Seconds for a command to begin. A start on an idle machine takes a twentieth of a second."""
_KILL_S = 10.0
_LEARNING_S = (0.0, 0.05, 0.2, 0.5)
"""Pauses before the engine is asked again about the end of a container. The engine learns of an end a moment late."""
_CAUSE_S = (0.2, 0.3, 0.5)
"""Pauses after a container's end, before the engine is asked again whether memory was the cause."""
_TOOL_S = 10.0
_NEEDED = 6
"""Processes needed to start a command."""
_NOT_FOUND = 127
_BY_KILL = 128 + 9
_SHOW_OOM = "cat /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control 2>/dev/null; echo end"


class DockerSandbox(ShellSandbox):
    """One container, with the containers of services. Commands run through the engine's exec. `DockerBackend.sandbox`
    makes the sandbox.
    """

    kind: ClassVar[str] = "docker"
    has_services: ClassVar[bool] = True

    def __init__(self, spec: SandboxSpec, engine: DockerClient, images: Images, watch: DiskWatch) -> None:
        super().__init__(spec, f"docker-{secrets.token_hex(8)}")
        self._processes: set[DockerProcess] = set()
        self._place(engine, images, watch)

    def _place(self, engine: DockerClient, images: Images, watch: DiskWatch) -> None:
        """Set the engine for opening."""
        self._engine, self._images, self._watch = engine, images, watch
        self._docker = engine.docker
        self._container = self._docker.containers.container(self.sandbox_id)  # an engine takes names for ids
        self._requests: set[asyncio.Task[Any]] = set()
        self._siblings = (
            SiblingContainers(self.sandbox_id, self.spec, self.spec.services, engine, images)
            if self.spec.services is not None
            else None
        )
        self._dead: tuple[type[SandboxError], str] | None = None
        """Why commands can no longer run: SandboxKilledError if the sandbox's own commands were the cause."""
        self._killed_for = ""
        self._condemned = False

    @contextlib.contextmanager
    def telling(self) -> Iterator[None]:
        """Turn the engine's errors into SandboxError about this sandbox."""
        with self._engine.telling(f"sandbox {self.sandbox_id}"):
            yield

    async def _open(self) -> None:
        image = await self._images.owned(self.spec)
        with self.telling():
            try:
                if self._siblings is not None:
                    await self._siblings.prepare(image, self._whole)
                await self._create(image)
            except DockerError as exc:
                if exc.status != 404:  # the image has been removed meanwhile
                    raise
                self._images.forget()
                if self._siblings is not None:  # the next sandbox makes the missing image
                    raise
                image = await self._images.owned(self.spec)
                await self._create(image)
            if not self.spec.read_only:
                self._watch.add(self.sandbox_id, self.spec.disk_mb, self.kill_all)
            await self._whole(self._container.start())
            if self._siblings is not None:
                for name, service in self._siblings.group.services.items():
                    kill = functools.partial(self._kill_for, name)
                    self._watch.add(self._siblings.name(name), service.disk_mb, kill)
                await ServiceStart(self._siblings, self._whole).run()
        if image.seed:
            await self._sow()

    async def _create(self, image: Image) -> None:
        body = configuration(self.spec, self.sandbox_id, image, self._engine.host)
        if self._siblings is not None:
            host_config = self._siblings.main()
            body["HostConfig"] |= {**host_config, "Mounts": [*body["HostConfig"]["Mounts"], *host_config["Mounts"]]}
            body["NetworkingConfig"] = self._siblings.endpoints(MAIN, self._siblings.group.main)
        await self._whole(self._engine.create(body, self.sandbox_id))
        if self._siblings is not None:
            await self._siblings.place(MAIN, self._siblings.group.main, self._whole)

    async def _whole(self, request: Coroutine[Any, Any, T]) -> T:
        """A request to create an object. If the caller is cancelled, the request continues, and `_close` waits for the
        end: the engine would complete the request anyway, perhaps after the removal.
        """
        task = asyncio.create_task(request)
        self._requests.add(task)
        return await asyncio.shield(task)

    async def _kill_for(self, service: str, why: str) -> None:
        await self.kill_all(f"its service {service}: {why}")

    async def _listener(self) -> socket.socket:
        with self.telling():
            return await listener_in(self.sandbox_id, self.spec, self._engine, self._images)

    async def _sow(self) -> None:
        """Copy the image's content of the work folder, because the sandbox's work folder is in memory."""
        output = await self._small(sowing(self.spec.workdir), SOWN, user=identity(self.spec.user))
        if not output.endswith(SOWN):
            raise SandboxError(
                f"sandbox {self.sandbox_id}: the image's content of {self.spec.workdir} cannot be copied there: "
                f"{output[-300:]}; raise disk_mb, or set read_only: false"
            )

    async def _close(self) -> None:
        """If the engine does not answer, the container is left to the reaper of a later run."""
        self._watch.drop(self.sandbox_id)
        for name in self._siblings.names if self._siblings is not None else ():
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
        """False: the container may still be there."""
        for wait_s in (0.5, 2.0, 5.0, 0.0):
            if self._engine.gone:
                return False
            try:
                with self.telling():
                    if self._siblings is None:
                        await remove(self._engine, self.sandbox_id)
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
            with self.telling():
                return await stored(self._engine, self.sandbox_id, path, max_bytes)
        return await super().read_stored(sandbox_path, max_bytes=max_bytes)  # the engine does not see folders in memory

    async def snapshot(self) -> Snapshot:
        """See `Sandbox.snapshot`. Raises ConfigError if the sandbox has services: a service's state cannot be saved."""
        if self._siblings is not None:
            raise ConfigError(
                f"sandbox {self.sandbox_id} has services ({', '.join(self._siblings.group.services)}), whose data no "
                "snapshot holds: its episode cannot be parked or branched, and starts again instead"
            )
        return await super().snapshot()

    # Commands

    async def _spawn(
        self, argv: Sequence[str], *, user: str, env: Mapping[str, str], cwd: str, stdin: bool, sink: OnOutput
    ) -> DockerProcess:
        self.check_alive()
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
        with self.telling():
            try:
                command = await self._container.exec(
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
                await self.ensure_alive()  # raises the cause, if the container is gone
                raise
        process = DockerProcess(self, command, stream, token, user, sink)
        self._processes.add(process)
        process.when_done(self._processes.discard)
        with self.telling():
            async with asyncio.timeout(_START_S):
                await process.begun()
        return process

    async def condemn(self, why: str) -> None:
        """The engine is gone: running and later requests raise SandboxError with this reason."""
        self._dead = self._dead or (SandboxError, f"sandbox {self.sandbox_id}: {why}")
        self._condemned = True
        await asyncio.gather(*(process.abandon() for process in list(self._processes)))

    def _check_still_open(self) -> None:
        if self._condemned:  # the engine's loss ended the commands
            self.check_alive()
        super()._check_still_open()

    async def _unwanted(self, starting: asyncio.Task[DockerProcess]) -> None:
        await asyncio.wait([starting])
        if not starting.cancelled() and starting.exception() is None:
            await starting.result().kill()

    async def kill_tree(self, pid: int, user: str) -> bool:
        """Kill a process of this user and all descendants. False: the kill may have failed."""
        for _ in range(3):
            with contextlib.suppress(SandboxError, TimeoutError):
                async with asyncio.timeout(_KILL_S):
                    output = await self._small(killer(pid), KILLED, user=identity(user))
                if output.endswith(KILLED):
                    return True
            if self._dead is not None:
                break
        return False

    async def kill_all(self, why: str) -> None:
        """Kill the container because of its commands. Later requests raise SandboxKilledError with this reason, or
        SandboxError if the engine fails to kill the container, or if the container had ended before for a different
        reason.
        """
        try:
            with self.telling():
                async with asyncio.timeout(_KILL_S):
                    await self.look()
                    self._killed_for = why
                    await self._kill()
                    await self.look()
        except SandboxError as exc:
            self._killed_for = ""
            self._dead = self._dead or (SandboxError, f"{exc} (it was to be killed: {why})")
            raise

    async def _kill(self) -> None:
        try:
            await self._container.kill()
        except DockerError as exc:
            if exc.status not in (404, 409):  # the container has ended already
                raise

    async def _small(self, argv: Sequence[str], last: str, *, user: str) -> str:
        """The output of one of our own commands: up to the word `last`, or all output if the word never comes.

        The engine may report the command's end seconds late, if a background process of a different command holds the
        pipes.
        """
        output = b""
        with self.telling():
            command = await self._container.exec(list(argv), user=user, workdir="/")
            async with command.start() as stream:
                while last.encode() not in output and (message := await stream.read_out()) is not None:
                    output += message.data
        return output.decode(errors="replace").strip()

    # State

    def check_alive(self) -> None:
        """Raises SandboxKilledError or SandboxError, with the cause, if the container has ended."""
        if self._dead is not None:
            kind, why = self._dead
            raise kind(why)

    async def ensure_alive(self) -> None:
        """Like `check_alive`, for signs of an end that the engine may not know yet."""
        for delay in _LEARNING_S:
            await asyncio.sleep(delay)
            await self.look()
            self.check_alive()

    async def ping(self) -> None:
        """See `Sandbox.ping`. The engine answers within milliseconds; a command would take fifty."""
        self._admit(None)
        with self.telling():
            await self.look()
            self.check_alive()
            if await self.used_up() == "process":
                raise SandboxKilledError(self.no_room())

    def no_room(self) -> str:
        """The message about a sandbox with a full process table."""
        pids = self.spec.pids
        return f"sandbox {self.sandbox_id} has no room for another process (pids={pids}): its own fill it"

    async def look(self) -> None:
        """Ask the engine whether the container has ended, and note why."""
        if self._dead is not None:
            return
        state = await self._told_state()
        if state["Running"]:
            return
        for delay in _CAUSE_S:
            if state["ExitCode"] != _BY_KILL or state["OOMKilled"] or self._killed_for:
                break
            await asyncio.sleep(delay)
            state = await self._told_state()
        name = f"sandbox {self.sandbox_id}"
        if self._killed_for:
            self._dead = (SandboxKilledError, f"{name} was killed: {self._killed_for}")
        elif state["OOMKilled"]:
            why = f"{name} ended: its memory was used up (memory_mb={self.spec.memory_mb})"
            self._dead = (SandboxKilledError, why)
        elif state["ExitCode"] == _NOT_FOUND:
            raise SandboxError(f"{name}: image {self.spec.image or 'of the spec'!r} has no /bin/sh")
        else:  # no command can end the first process
            why = f"exit code {state['ExitCode']}: the engine was restarted, or the container was stopped"
            self._dead = (SandboxError, f"{name} was stopped from outside ({why})")

    async def _told_state(self) -> dict[str, Any]:
        try:
            state: dict[str, Any] = (await self._container.show())["State"]
        except DockerError as exc:
            if exc.status != 404:
                raise
            raise SandboxError(
                f"sandbox {self.sandbox_id} was removed from outside: its lifetime_s={self.spec.lifetime_s:g} was "
                "over, or it was removed by hand"
            ) from exc
        return state

    async def out_of_memory(self, before: int) -> bool:
        """Whether the kernel has killed more than `before` processes of this sandbox for memory."""
        with contextlib.suppress(SandboxError, TimeoutError):
            async with asyncio.timeout(_TOOL_S):
                output = await self._small(["/bin/sh", "-c", _SHOW_OOM], "end", user="0:0")
            words = output.split()
            counts = [int(count) for name, count in itertools.pairwise(words) if name == "oom_kill"]
            return "OOM-killed" in output or max(counts, default=0) > before  # or no room for this command either
        return False

    async def used_up(self, pids: float = 1.0) -> Literal["process", "memory", ""]:
        """The exhausted resource of the container, by the engine's counts. Processes count as exhausted at the share
        `pids` of the limit.
        """
        try:
            parameters = {"stream": "0", "one-shot": "1"}
            stats = await self._docker._query_json(f"containers/{self.sandbox_id}/stats", params=parameters)
        except DockerError:  # the container has ended
            return ""
        if stats.get("pids_stats", {}).get("current", 0) > pids * self.spec.pids - _NEEDED:
            return "process"
        memory = stats.get("memory_stats", {})
        return "memory" if memory.get("usage", 0) > 0.9 * memory.get("limit", float("inf")) else ""


async def remove(engine: DockerClient, sandbox_id: str) -> None:
    """Remove a container with the container's volumes. A missing container is not an error."""
    try:
        await engine.docker.containers.container(sandbox_id).delete(force=True, v=True)
    except DockerError as exc:
        if exc.status == 409:  # a parallel removal runs at this moment
            await asyncio.sleep(0.2)
            return
        if exc.status != 404:
            raise
