"""Its state holds a lock."""

import threading

from agentrl import Env, Task, tool

CAPITALS = {"France": "Paris", "Spain": "Madrid", "Italy": "Rome"}


class Locked(Env):
    @classmethod
    def tasks(cls, config, split):
        start = 0 if split == "train" else 50
        for n, (country, capital) in enumerate(CAPITALS.items()):
            yield Task(prompt=f"What is the capital of {country}?", label=capital, seed=start + n)

    async def reset(self, task):
        self.state = {"lock": threading.Lock(), "asked": 0}
        return task.prompt

    @tool
    async def look(self, country: str) -> str:
        """Look a country up."""
        self.state["asked"] += 1
        return CAPITALS.get(country, "unknown")

    async def score(self, trajectory):
        return float(trajectory.answer == self.task.label)

    async def snapshot(self):
        return self.state["asked"]

    async def restore(self, state):
        self.state = {"lock": threading.Lock(), "asked": state}
