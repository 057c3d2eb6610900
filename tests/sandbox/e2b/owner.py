"""A run that holds sandboxes until it is killed: python owner.py COUNT. It says `open` for each, then waits."""

import asyncio
import sys

from agentrl_sandbox import SandboxSpec, open_backend

AT_ONCE = 8


async def main() -> None:
    room = asyncio.Semaphore(AT_ONCE)
    async with open_backend("e2b") as backend:

        async def hold() -> None:
            async with room:
                box = await backend.sandbox(SandboxSpec(image="a-template", read_only=False)).__aenter__()
                await box.start("sleep 1000")
            print("open", flush=True)

        await asyncio.gather(*(hold() for _ in range(int(sys.argv[1]))))
        await asyncio.Event().wait()


asyncio.run(main())
