"""Blames the world for all that goes wrong."""

from agentrl import Env, InfraError, Task, tool

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
        except Exception as exc:
            raise InfraError("the atlas is down") from exc  # found here

    async def score(self, trajectory):
        return float(trajectory.answer == self.task.label)
