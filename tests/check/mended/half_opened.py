"""Starts a program, then greets it."""

import asyncio
from contextlib import asynccontextmanager

from agentrl import Env, Task, tool

CAPITALS = {"France": "Paris", "Spain": "Madrid", "Italy": "Rome"}


class Greeting(Env):
    process = None

    @classmethod
    def tasks(cls, config, split):
        start = 0 if split == "train" else 50
        for n, (country, capital) in enumerate(CAPITALS.items()):
            yield Task(prompt=f"What is the capital of {country}?", label=capital, seed=start + n)

    @asynccontextmanager
    async def cat(self):
        process = await asyncio.create_subprocess_exec(
            "cat", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        try:
            process.stdin.write(b"hello\n")
            await process.stdout.readline()
            yield process
        finally:
            process.kill()
            await process.communicate()

    async def reset(self, task):
        self.process = await self.enter(self.cat())
        return task.prompt

    @tool
    async def look(self, country: str) -> str:
        """Look a country up."""
        return CAPITALS.get(country, "unknown")

    async def score(self, trajectory):
        return float(trajectory.answer == self.task.label)
