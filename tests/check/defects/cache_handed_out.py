"""Caches its answers."""

from agentrl import Env, Task, tool

CAPITALS = {"France": "Paris", "Spain": "Madrid", "Italy": "Rome"}
cache = {}  # found here


class Cached(Env):
    @classmethod
    def tasks(cls, config, split):
        start = 0 if split == "train" else 50
        for n, (country, capital) in enumerate(CAPITALS.items()):
            yield Task(prompt=f"What is the capital of {country}?", label=capital, seed=start + n)

    @tool
    async def cities(self, country: str) -> list[str]:
        """The cities of a country that were not named yet."""
        if country not in cache:
            cache[country] = [CAPITALS.get(country, "unknown"), "Springfield"]  # found here
        left = cache[country]
        if left:
            left.pop()  # found here
        return list(left)

    async def score(self, trajectory):
        return float(trajectory.answer == self.task.label)
