"""Remembers what was looked up, to forbid it the second time."""

from agentrl import Env, Task, tool

CAPITALS = {"France": "Paris", "Spain": "Madrid", "Italy": "Rome"}


class Once(Env):
    seen: list[str] = []  # found here

    @classmethod
    def tasks(cls, config, split):
        start = 0 if split == "train" else 50
        for n, (country, capital) in enumerate(CAPITALS.items()):
            yield Task(prompt=f"What is the capital of {country}?", label=capital, seed=start + n)

    @tool
    async def look(self, country: str) -> str:
        """Look a country up; this works once for each."""
        if country in self.seen:
            return "You have asked that before."
        self.seen.append(country)  # found here
        return CAPITALS.get(country, "unknown")

    async def score(self, trajectory):
        return float(trajectory.answer == self.task.label)
