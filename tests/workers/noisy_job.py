# ruff: noqa: ASYNC110 - files and polls are how processes tell a test what they do
"""A job for workers that does what each request says: (verb, argument)."""

import asyncio
import os
import signal
from contextlib import asynccontextmanager
from pathlib import Path

from agentrl.errors import ConfigError, EngineLostError


@asynccontextmanager
async def open_job(folder):
    folder = Path(folder)
    if (folder / "refuse").exists():
        raise ConfigError("share failed: no corpus")
    if (folder / "die").exists():
        print("cannot allocate", flush=True)
        os._exit(7)
    with (folder / "opened").open("a") as file:
        file.write(f"{os.getpid()}\n")
    try:
        yield Job(folder)
    finally:
        await asyncio.sleep(0.05)
        with (folder / "closed").open("a") as file:
            file.write(f"{os.getpid()}\n")


class Job:
    def __init__(self, folder):
        self.folder = folder
        self.now = []

    def status(self):
        return list(self.now)

    async def play(self, request, aborted):
        verb, said = request
        self.now.append(said)
        try:
            return await getattr(self, verb)(said, aborted)
        finally:
            self.now.remove(said)

    async def echo(self, said, aborted):
        return said, os.getpid()

    async def wait(self, said, aborted):
        """Until aborted."""
        while not aborted():
            await asyncio.sleep(0.005)
        return said, "aborted"

    async def until(self, said, aborted):
        """Until a file appears; cancellation leaves a file, too."""
        try:
            while not (self.folder / said).exists():
                await asyncio.sleep(0.005)
        except asyncio.CancelledError:
            (self.folder / f"{said}.cancelled").touch()
            raise
        return said, os.getpid()

    async def once(self, said, aborted):
        """The first worker that gets it ends by kill -9."""
        mark = self.folder / f"{said}.once"
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return said, os.getpid()

    async def kill(self, said, aborted):
        os.kill(os.getpid(), signal.SIGKILL)

    async def refuse(self, said, aborted):
        raise ConfigError(said)

    async def lose(self, said, aborted):
        raise EngineLostError(said)

    async def bug(self, said, aborted):
        return {}[said]

    async def print(self, said, aborted):
        print(said, flush=True)

    async def unsendable(self, said, aborted):
        return lambda: said
