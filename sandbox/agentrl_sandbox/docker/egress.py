"""Open the connection from a container to the proxy, by a helper container, as the sandbox's image may lack python3."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any

from aiodocker import Docker, DockerError
from aiodocker.containers import DockerContainer

from agentrl_sandbox.command import finish
from agentrl_sandbox.docker.container import labels
from agentrl_sandbox.docker.engine import DockerClient
from agentrl_sandbox.docker.images import Images
from agentrl_sandbox.egress.listening import PORT, PROGRAM, handover
from agentrl_sandbox.spec import SandboxSpec

_OUT = "/agentrl-proxy.sock"
_NOBODY = 65_534
_MEMORY = 128 << 20


async def listener_in(sandbox_id: str, spec: SandboxSpec, engine: DockerClient, images: Images) -> socket.socket:
    """A socket that listens at the loopback interface of a running container. Raises SandboxError.

    The helper container shares only the network with the sandbox, runs `egress.listening.PROGRAM` in the base image,
    and is removed before a command runs in the sandbox.
    """
    image, name = await images.ready(""), f"{sandbox_id}.proxy"
    async with handover() as way:
        body = _configuration(spec, name, sandbox_id, image.name, way.path)
        creating = asyncio.create_task(engine.docker.containers.create(body, name=name))
        try:
            container = await asyncio.shield(creating)
            await container.start()
            return await way.listener(_last_words(container))
        finally:
            await finish(_remove(engine.docker, creating, name))


def _configuration(spec: SandboxSpec, name: str, sandbox_id: str, image: str, socket_path: str) -> dict[str, Any]:
    return {
        "Image": image,
        "User": f"{_NOBODY}:{_NOBODY}",
        "Entrypoint": ["python3", "-I", "-c", PROGRAM],
        "Cmd": [_OUT, str(PORT)],
        "WorkingDir": "/",
        "Labels": labels(spec.model_copy(update={"image": "", "read_only": True}), name),
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": {
            "NetworkMode": f"container:{sandbox_id}",
            "ReadonlyRootfs": True,
            "Mounts": [{"Type": "bind", "Source": socket_path, "Target": _OUT}],
            "Memory": _MEMORY,
            "MemorySwap": _MEMORY,
            "PidsLimit": 16,
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges"],
        },
    }


async def _last_words(container: DockerContainer) -> str:
    """The output of a container that has ended."""
    await container.wait()
    return "".join(await container.log(stdout=True, stderr=True))


async def _remove(docker: Docker, creating: asyncio.Task[Any], name: str) -> None:
    """Remove a container. If this fails, the reaper removes the container later."""
    await asyncio.wait([creating])
    if not creating.cancelled():
        creating.exception()  # raised at the request
    with contextlib.suppress(DockerError):
        await docker.containers.container(name).delete(force=True, v=True)
