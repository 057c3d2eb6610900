"""Closes what reset has opened."""

from agentrl import Env, Task, tool

CAPITALS = {"France": "Paris", "Spain": "Madrid", "Italy": "Rome"}


class Library(Env):
    @classmethod
    def tasks(cls, config, split):
        start = 0 if split == "train" else 50
        for n, (country, capital) in enumerate(CAPITALS.items()):
            yield Task(prompt=f"What is the capital of {country}?", label=capital, seed=start + n)

    async def reset(self, task):
        self.books = dict(CAPITALS)
        return task.prompt

    @tool
    async def look(self, country: str) -> str:
        """Look a country up."""
        return self.books.get(country, "unknown")

    async def score(self, trajectory):
        return float(trajectory.answer == self.task.label)

    async def close(self):
        self.books.clear()  # found here
