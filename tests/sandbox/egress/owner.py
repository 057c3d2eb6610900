"""A run that makes sandboxes with a list of hosts until it is killed: python owner.py BACKEND."""

import asyncio
import sys

from agentrl_sandbox import SandboxSpec, open_backend, owners


async def main() -> None:
    print(owners.current(), flush=True)
    spec = SandboxSpec(memory_mb=64, disk_mb=16, pids=32, network=("pypi.org",))
    async with open_backend(sys.argv[1]) as backend:
        await backend.sandbox(spec).__aenter__()
        others = [asyncio.create_task(backend.sandbox(spec).__aenter__()) for _ in range(4)]
        await asyncio.sleep(0.2)
        print("open", flush=True)
        await asyncio.wait(others)
        await asyncio.Event().wait()


asyncio.run(main())
