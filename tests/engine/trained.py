"""A scripted engine that takes weights."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from agentrl.engine import ScriptedEngine


class Trained(ScriptedEngine):
    """Has weights, and looks whether a request runs while they change."""

    version = "0"
    half = False
    deaf = 0
    """Aborts that are not heard."""

    async def generate(self, *args, **kwargs):
        version = self.version
        found = await super().generate(*args, **kwargs)
        assert version == self.version, "a request ran over an update"
        return replace(found, weight_version=version)

    async def _play(self, said, rid):
        """With `half`, the first weights say half of a turn and then wait to be aborted."""
        if not self.half or self.version != "0":
            return await super()._play(said, rid)
        aborted = self.in_progress[rid] = asyncio.Event()
        await aborted.wait()
        del self.in_progress[rid]
        count = len(said.tokens) // 2
        return replace(said, tokens=said.tokens[:count], log_probs=said.log_probs[:count], finish_reason="abort")

    async def update(self, model, version):
        assert not self.in_progress
        await asyncio.sleep(0.01)
        self.version = version

    async def abort(self, rid=None):
        self.deaf -= 1
        if self.deaf < 0:
            await super().abort(rid)

    async def wake(self):
        pass

    async def sleep(self):
        pass
