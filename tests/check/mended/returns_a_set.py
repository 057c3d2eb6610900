"""A tool that answers with a set."""

from agentrl import Env, Task, tool

CAPITALS = {"France": "Paris", "Spain": "Madrid", "Italy": "Rome"}


class Letters(Env):
    @classmethod
    def tasks(cls, config, split):
        start = 0 if split == "train" else 50
        for n, (country, capital) in enumerate(CAPITALS.items()):
            yield Task(prompt=f"What is the capital of {country}?", label=capital, seed=start + n)

    @tool
    async def letters(self, country: str) -> list[str]:
        """The letters of a country's capital."""
        return sorted(set(CAPITALS.get(country, "")))

    async def score(self, trajectory):
        return float(trajectory.answer == self.task.label)
