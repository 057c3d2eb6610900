"""Asks a program."""

import subprocess

from agentrl import Env, Task, tool

CAPITALS = {"France": "Paris", "Spain": "Madrid", "Italy": "Rome"}


class Asking(Env):
    @classmethod
    def tasks(cls, config, split):
        start = 0 if split == "train" else 50
        for n, (country, capital) in enumerate(CAPITALS.items()):
            yield Task(prompt=f"What is the capital of {country}?", label=capital, seed=start + n)

    async def reset(self, task):
        self.greeting = await self.call(greet)
        return task.prompt

    @tool
    async def look(self, country: str) -> str:
        """Look a country up."""
        return CAPITALS.get(country, "unknown")

    async def score(self, trajectory):
        return float(trajectory.answer == self.task.label)


def greet():
    return subprocess.run(["sh", "-c", "sleep 0.1; echo hello"], capture_output=True, text=True).stdout
