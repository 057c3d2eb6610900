"""Answers in any case."""

import asyncio

from agentrl import Env, Task, tool

CAPITALS = {"France": "Paris", "Spain": "Madrid", "Italy": "Rome"}


class Sure(Env):
    @classmethod
    def tasks(cls, config, split):
        start = 0 if split == "train" else 50
        for n, (country, capital) in enumerate(CAPITALS.items()):
            yield Task(prompt=f"What is the capital of {country}?", label=capital, seed=start + n)

    @tool
    async def look(self, country: str) -> str:
        """Look a country up."""
        answer = "unknown"
        try:
            await asyncio.sleep(0.001)  # found here
            answer = CAPITALS.get(country, answer)
        finally:
            return answer  # noqa: B012

    async def score(self, trajectory):
        return float(trajectory.answer == self.task.label)
