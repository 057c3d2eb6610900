"""A run that holds sandboxes until it is killed: python owner.py COUNT [services]. It says `open` for each, then waits.

With `services`, each has one beside it, and a volume.
"""

import asyncio
import os
import sys

from agentrl_sandbox import owners
from agentrl_sandbox.docker import DockerBackend
from agentrl_sandbox.docker.images import BASE
from agentrl_sandbox.services import Mount, Placed, Service, ServiceGroup
from agentrl_sandbox.spec import SandboxSpec

AT_ONCE = 8


def group() -> ServiceGroup:
    shared = {"networks": {"default": ()}, "mounts": (Mount(path="/shared", volume="shared"),)}
    web = Service(image=os.environ[BASE], command=("sleep", "1000"), memory_mb=32, pids=16, **shared)
    return ServiceGroup(services={"web": web}, main=Placed(**shared), volumes={"shared": ""}, ready_s=300)


async def main() -> None:
    print(owners.current(), flush=True)
    room = asyncio.Semaphore(AT_ONCE)
    spec = SandboxSpec(memory_mb=64, disk_mb=16, pids=32)
    if "services" in sys.argv:
        spec = spec.model_copy(update={"services": group(), "read_only": False})
    async with DockerBackend() as backend:

        async def hold() -> None:
            async with room:
                box = await backend.sandbox(spec).__aenter__()
                await box.start("sleep 1000")
            print("open", flush=True)

        await asyncio.gather(*(hold() for _ in range(int(sys.argv[1]))))
        await asyncio.Event().wait()


asyncio.run(main())
