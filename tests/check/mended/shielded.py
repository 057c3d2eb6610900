"""Protects its slow write."""

import asyncio

from agentrl import Env, Task, tool

CAPITALS = {"France": "Paris", "Spain": "Madrid", "Italy": "Rome"}


class Shielded(Env):
    @classmethod
    def tasks(cls, config, split):
        start = 0 if split == "train" else 50
        for n, (country, capital) in enumerate(CAPITALS.items()):
            yield Task(prompt=f"What is the capital of {country}?", label=capital, seed=start + n)

    async def write(self):
        await asyncio.sleep(0.01)
        await asyncio.Event().wait() if False else None

    async def flush(self):
        await asyncio.sleep(3600 if self.closing else 0)

    async def reset(self, task):
        self.closing = True
        return task.prompt

    @tool
    async def save(self) -> str:
        """Save the work."""
        flushing = asyncio.ensure_future(self.flush())
        try:
            await asyncio.sleep(0.001)
        finally:
            flushing.cancel()
        return "saved"

    async def score(self, trajectory):
        return float(trajectory.answer == self.task.label)
