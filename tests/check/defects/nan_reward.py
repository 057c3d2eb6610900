"""The share of its calls that found something."""

from agentrl import Env, Task, tool

CAPITALS = {"France": "Paris", "Spain": "Madrid", "Italy": "Rome"}


class Share(Env):
    calls = hits = 0

    @classmethod
    def tasks(cls, config, split):
        start = 0 if split == "train" else 50
        for n, (country, capital) in enumerate(CAPITALS.items()):
            yield Task(prompt=f"What is the capital of {country}?", label=capital, seed=start + n)

    @tool
    async def look(self, country: str) -> str:
        """Look a country up."""
        self.calls += 1
        self.hits += country in CAPITALS
        return CAPITALS.get(country, "unknown")

    async def score(self, trajectory):  # found here
        return self.hits / self.calls if self.calls else float("nan")
