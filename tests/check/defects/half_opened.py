"""Starts a program, then greets it."""

import asyncio

from agentrl import Env, Task, tool

CAPITALS = {"France": "Paris", "Spain": "Madrid", "Italy": "Rome"}


class Greeting(Env):
    process = None

    @classmethod
    def tasks(cls, config, split):
        start = 0 if split == "train" else 50
        for n, (country, capital) in enumerate(CAPITALS.items()):
            yield Task(prompt=f"What is the capital of {country}?", label=capital, seed=start + n)

    async def reset(self, task):
        process = await asyncio.create_subprocess_exec(  # found here
            "cat", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        process.stdin.write(b"hello\n")
        await process.stdout.readline()
        self.process = process
        return task.prompt

    @tool
    async def look(self, country: str) -> str:
        """Look a country up."""
        return CAPITALS.get(country, "unknown")

    async def score(self, trajectory):
        return float(trajectory.answer == self.task.label)

    async def close(self):
        if self.process is not None and self.process.returncode is None:
            self.process.kill()
            await self.process.communicate()
