"""Adds up in a pool of its own."""

from concurrent.futures import ThreadPoolExecutor

from agentrl import Env, Task, tool

CAPITALS = {"France": "Paris", "Spain": "Madrid", "Italy": "Rome"}


class Pooled(Env):
    @classmethod
    def tasks(cls, config, split):
        start = 0 if split == "train" else 50
        for n, (country, capital) in enumerate(CAPITALS.items()):
            yield Task(prompt=f"What is the capital of {country}?", label=capital, seed=start + n)

    async def reset(self, task):
        self.pool = ThreadPoolExecutor(1)
        return task.prompt

    @tool
    def look(self, country: str) -> str:
        """Look a country up."""
        return self.pool.submit(CAPITALS.get, country, "unknown").result()

    def close(self):
        pool = getattr(self, "pool", None)
        if pool is not None:
            pool.shutdown()

    def score(self, trajectory):
        return float(trajectory.answer == self.task.label)
