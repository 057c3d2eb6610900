"""Points are counted by taking them out of a list."""

from agentrl import Env, Task, tool

CAPITALS = {"France": "Paris", "Spain": "Madrid", "Italy": "Rome"}


class Points(Env):
    @classmethod
    def tasks(cls, config, split):
        start = 0 if split == "train" else 50
        for n, (country, capital) in enumerate(CAPITALS.items()):
            yield Task(prompt=f"What is the capital of {country}?", label=capital, seed=start + n)

    async def reset(self, task):
        self.points = []
        return task.prompt

    @tool
    async def look(self, country: str) -> str:
        """Look a country up."""
        self.points.append(0.125)
        return CAPITALS.get(country, "unknown")

    async def score(self, trajectory):
        return sum(self.points[:4], 0.0)
