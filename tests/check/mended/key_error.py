"""Knows three countries."""

from agentrl import Env, Task, ToolError, tool

CAPITALS = {"France": "Paris", "Spain": "Madrid", "Italy": "Rome"}


class Known(Env):
    @classmethod
    def tasks(cls, config, split):
        start = 0 if split == "train" else 50
        for n, (country, capital) in enumerate(CAPITALS.items()):
            yield Task(prompt=f"What is the capital of {country}?", label=capital, seed=start + n)

    @tool
    async def look(self, country: str) -> str:
        """Look a country up."""
        if country not in CAPITALS:
            raise ToolError(f"no country is named {country}")
        return CAPITALS[country]

    async def score(self, trajectory):
        return float(trajectory.answer == self.task.label)
