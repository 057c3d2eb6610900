"""Looks at the last message."""

from agentrl import Env, Task, tool

CAPITALS = {"France": "Paris", "Spain": "Madrid", "Italy": "Rome"}


class Last(Env):
    @classmethod
    def tasks(cls, config, split):
        start = 0 if split == "train" else 50
        for n, (country, capital) in enumerate(CAPITALS.items()):
            yield Task(prompt=f"What is the capital of {country}?", label=capital, seed=start + n)

    @tool
    async def look(self, country: str) -> str:
        """Look a country up."""
        return CAPITALS.get(country, "unknown")

    async def score(self, trajectory):
        last = trajectory.messages.pop()  # found here
        return float(self.task.label in str(last["content"]))
