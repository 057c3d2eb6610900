"""One at a time, please."""

import asyncio

from agentrl import Env, Task, tool

CAPITALS = {"France": "Paris", "Spain": "Madrid", "Italy": "Rome"}


class Queue(Env):
    @classmethod
    def tasks(cls, config, split):
        start = 0 if split == "train" else 50
        for n, (country, capital) in enumerate(CAPITALS.items()):
            yield Task(prompt=f"What is the capital of {country}?", label=capital, seed=start + n)

    @classmethod
    def share(cls, config):
        return {"one": asyncio.Lock()}

    @tool
    async def look(self, country: str) -> str:
        """Look a country up."""
        await self.shared["one"].acquire()  # found here
        await asyncio.sleep(0.001)  # found here
        self.shared["one"].release()
        return CAPITALS.get(country, "unknown")

    async def score(self, trajectory):
        return float(trajectory.answer == self.task.label)
