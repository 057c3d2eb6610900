"""A clock ticks beside the episode."""

import asyncio

from agentrl import Env, Task, tool

CAPITALS = {"France": "Paris", "Spain": "Madrid", "Italy": "Rome"}


class Clock(Env):
    @classmethod
    def tasks(cls, config, split):
        start = 0 if split == "train" else 50
        for n, (country, capital) in enumerate(CAPITALS.items()):
            yield Task(prompt=f"What is the capital of {country}?", label=capital, seed=start + n)

    async def reset(self, task):
        self.seconds = 0
        self.ticking = asyncio.create_task(self.tick())
        return task.prompt

    async def tick(self):
        while True:
            await asyncio.sleep(60)
            self.seconds += 60

    @tool
    async def elapsed(self) -> int:
        """How many seconds have passed."""
        return self.seconds

    async def score(self, trajectory):
        return float(trajectory.answer == self.task.label)

    async def close(self):
        ticking = getattr(self, "ticking", None)
        if ticking is not None:
            ticking.cancel()
