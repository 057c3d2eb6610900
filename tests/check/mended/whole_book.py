"""A tool that returns all that it has."""

from agentrl import Env, Task, tool

CAPITALS = {"France": "Paris", "Spain": "Madrid", "Italy": "Rome"}
BOOK = "It was a dark and stormy night. " * 1400


class Book(Env):
    @classmethod
    def tasks(cls, config, split):
        start = 0 if split == "train" else 50
        for n, (country, capital) in enumerate(CAPITALS.items()):
            yield Task(prompt=f"What is the capital of {country}?", label=capital, seed=start + n)

    @tool
    async def read(self) -> str:
        """Read the book."""
        return BOOK[:1000]

    async def score(self, trajectory):
        return float(trajectory.answer == self.task.label)
