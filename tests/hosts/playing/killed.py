"""A host that waits for SIGKILL, with four sandboxes open in its Envs.

    python -m tests.hosts.playing.killed HOST FOLDER

FOLDER has the list of sandboxes. A reaper elsewhere on the machine would empty the usual list.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from agentrl.hosts.turned import HostedEnv
from agentrl_sandbox import SandboxPool
from agentrl_sandbox.bubblewrap import registry
from tests.hosts.envs import Weather

BOXES = 4


class Boxed(Weather):
    """Each Env has a sandbox with a process of the command, and a process that has left the command's session."""

    @classmethod
    def share(cls, config):
        return SandboxPool("bubblewrap", size=BOXES, grade=1, warm=0)

    async def reset(self, task):
        box = await self.enter(self.shared.acquire())
        await box.start("setsid sleep 1000 & sleep 1000")
        super().reset(task)
        if Boxed.open == BOXES:
            print("ready", flush=True)
        await asyncio.Event().wait()


async def turned() -> None:
    hosted = HostedEnv(Boxed, model="tiny")
    episodes = [await hosted.turned(task, context_length=512) for task in hosted.tasks()[:BOXES]]
    await asyncio.gather(*(episode.request() for episode in episodes))


def trl(folder: Path) -> None:
    from agentrl.hosts.trl import TRLRollouts
    from tests.hosts.playing.trl import trainer

    trainer(TRLRollouts(Boxed), folder / "trl").train()


if __name__ == "__main__":
    name, folder = sys.argv[1], Path(sys.argv[2])
    registry.folder = lambda: folder
    if name == "trl":
        trl(folder)
    else:
        asyncio.run(turned())
