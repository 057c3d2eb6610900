"""Blames the world for all that goes wrong."""

from agentrl import Env, Task, ToolError, tool

CAPITALS = {"France": "Paris", "Spain": "Madrid", "Italy": "Rome"}


class Blaming(Env):
    @classmethod
    def tasks(cls, config, split):
        start = 0 if split == "train" else 50
        for n, (country, capital) in enumerate(CAPITALS.items()):
            yield Task(prompt=f"What is the capital of {country}?", label=capital, seed=start + n)

    @tool
    async def look(self, country: str) -> str:
        """Look a country up."""
        try:
            return CAPITALS[country]
        except KeyError as exc:
            raise ToolError("there is no such country") from exc

    async def score(self, trajectory):
        return float(trajectory.answer == self.task.label)
