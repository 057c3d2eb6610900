"""DockerBackend: sandboxes on a container engine."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Self

from aiodocker import DockerError

from agentrl.errors import ConfigError, SandboxError
from agentrl_sandbox import machine, owners
from agentrl_sandbox.backend import FoundSandbox, Leftover
from agentrl_sandbox.docker.container import DEADLINE, IMAGE, OWNER, RUN, SANDBOX
from agentrl_sandbox.docker.disk import DiskWatch
from agentrl_sandbox.docker.engine import DockerClient
from agentrl_sandbox.docker.images import NAMES, Images
from agentrl_sandbox.docker.labelled import labelled, remove_groups
from agentrl_sandbox.docker.sandbox import DockerSandbox
from agentrl_sandbox.machine import Machine
from agentrl_sandbox.reaper import paused, reaping
from agentrl_sandbox.spec import SandboxSpec

_OWN_IMAGES = json.dumps({"reference": list(NAMES)})


class DockerBackend:
    """A `Backend` on an engine: the engine `host`, or else the engine of DOCKER_HOST or of Docker's usual sockets.

    An image is an image name, a folder with a Dockerfile, or a root file system in a tar file: see `Images`.
    """

    name = "docker"

    def __init__(self, host: str = "") -> None:
        self._host, self._stack = host, AsyncExitStack()
        self._engine: DockerClient | None = None
        self._images: Images | None = None

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            engine = DockerClient(self._host)
            stack.push_async_callback(engine.close)
            await engine.connect()
            self._engine, self._images, self._watch = engine, Images(engine), DiskWatch(engine)
            stack.push_async_callback(self._images.close)
            await stack.enter_async_context(self._watch.running())
            await stack.enter_async_context(reaping(self))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        try:
            await self._stack.aclose()
        finally:
            self._engine = self._images = None

    def sandbox(self, spec: SandboxSpec) -> DockerSandbox:
        """See `Backend.sandbox`."""
        self.check(spec)
        return DockerSandbox(spec, *self.parts)

    def check(self, spec: SandboxSpec) -> None:
        """Raises ConfigError for a spec beyond the limits of the engine."""
        if not spec.workdir.startswith("/") or spec.workdir.rstrip("/") in ("", "/tmp"):
            raise ConfigError(f"workdir {spec.workdir!r} must be an absolute path to a separate folder, such as /work")
        if spec.hosts and not self.engine.host.here:
            raise ConfigError(
                f"network: {', '.join(spec.hosts)}: the proxy for a list of hosts runs on this machine, and the engine "
                f"at {self.engine.address} on another; use an engine of this machine, or network: none or open"
            )

    @property
    def parts(self) -> tuple[DockerClient, Images, DiskWatch]:
        """The client, the images and the disk watch, which all sandboxes share."""
        return *self._opened(), self._watch

    @property
    def engine(self) -> DockerClient:
        """The client of the engine, once the back end is entered."""
        return self._opened()[0]

    async def prepare(self, image: str) -> None:
        """See `Backend.prepare`."""
        _, images = self._opened()
        await images.ready(image)

    @property
    def machine(self) -> Machine:
        """See `HasMachine.machine`: the engine's machine. If the engine runs on this machine, the limits of this
        process apply too."""
        host, local = self._opened()[0].host, machine.here()
        if host.here or not host.memory_mb:
            return Machine(min(host.cores, local.cores), local.memory_mb)
        return Machine(host.cores, host.memory_mb)

    async def list(self) -> Sequence[FoundSandbox]:
        """See `Backend.list`."""
        engine, _ = self._opened()
        with engine.telling("the list of sandboxes"):
            by_id = {sandbox.sandbox_id: sandbox for sandbox in map(_found, (await labelled(engine)).labels)}
        return list(by_id.values())

    async def remove(self, sandbox_ids: Sequence[str]) -> None:
        """See `Backend.remove`."""
        engine, _ = self._opened()
        with engine.telling(f"{len(sandbox_ids)} sandboxes"):
            await remove_groups(engine, sandbox_ids)

    async def leftovers(self) -> Sequence[Leftover]:
        """The images that agentrl built, imported or prepared. Empty while a run has sandboxes here, which may need
        them."""
        if not all(sandbox.gone for sandbox in await self.list()):
            return []
        engine, _ = self._opened()
        with engine.telling("the list of images"):
            images = await engine.docker._query_json("images/json", params={"filters": _OWN_IMAGES})
            running = await engine.docker.containers.list(all=1)
        used = {container["ImageID"] for container in running}
        return [
            Leftover("image", name, f"{image['Size'] / 1e6:.0f} MB", image["Size"])
            for image in images
            for name in image["RepoTags"] or ()
            if name.partition(":")[0] in NAMES and image["Id"] not in used
        ]

    async def clear(self, leftovers: Sequence[Leftover]) -> Sequence[Leftover]:
        """See `HasLeftovers.clear`. An image with a second name loses only agentrl's name."""
        engine, _ = self._opened()
        cleared = []
        for leftover in leftovers:
            with contextlib.suppress(DockerError), engine.telling(f"image {leftover.name}"):
                await engine.docker.images.delete(leftover.name)
                cleared.append(leftover)
        return cleared

    def _opened(self) -> tuple[DockerClient, Images]:
        if self._engine is None or self._images is None:
            raise SandboxError("the docker back end is not open; use it within `async with`")
        return self._engine, self._images


async def missing_images(backend: str, images: Sequence[str]) -> Mapping[str, Sequence[str]]:
    """Host -> the missing images, for a back end `docker`, `auto` or `docker:HOST,HOST`. A host that does not respond
    is left out."""
    missing = {}
    for host in backend.partition(":")[2].split(","):
        with contextlib.suppress(SandboxError), paused():
            async with DockerBackend(host.strip()) as opened:
                engine, stored, _ = opened.parts
                missing[engine.name] = [image for image in images if not await stored.has(image)]
    return missing


def _found(labels: dict[str, str]) -> FoundSandbox:
    owner, deadline = labels.get(OWNER, ""), float(labels.get(DEADLINE) or "inf")
    return FoundSandbox(
        sandbox_id=labels[SANDBOX],
        image=labels.get(IMAGE, ""),
        owner=owner,
        run=labels.get(RUN, ""),
        deadline=deadline,
        gone=owners.is_gone(owner, deadline),
    )
