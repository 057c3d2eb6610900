"""A run that holds sandboxes until it is killed: python owner.py COUNT. It says `open` for each, then waits."""

import asyncio
import sys

from agentrl_sandbox import owners
from agentrl_sandbox.docker import DockerBackend
from agentrl_sandbox.spec import SandboxSpec

AT_ONCE = 8


async def main() -> None:
    print(owners.current(), flush=True)
    room = asyncio.Semaphore(AT_ONCE)
    async with DockerBackend() as backend:

        async def hold() -> None:
            async with room:
                box = await backend.sandbox(SandboxSpec(memory_mb=64, disk_mb=16, pids=32)).__aenter__()
                await box.start("sleep 1000")
            print("open", flush=True)

        await asyncio.gather(*(hold() for _ in range(int(sys.argv[1]))))
        await asyncio.Event().wait()


asyncio.run(main())
