"""Takes points off for mistakes, and begins with all of them."""

from agentrl import Env, Task, tool

CAPITALS = {"France": "Paris", "Spain": "Madrid", "Italy": "Rome"}


class Generous(Env):
    mistakes = 0

    @classmethod
    def tasks(cls, config, split):
        start = 0 if split == "train" else 50
        for n, (country, capital) in enumerate(CAPITALS.items()):
            yield Task(prompt=f"What is the capital of {country}?", label=capital, seed=start + n)

    @tool
    async def look(self, country: str) -> str:
        """Look a country up."""
        self.mistakes += country not in CAPITALS
        return CAPITALS.get(country, "unknown")

    async def score(self, trajectory):
        return max(0.0, float(trajectory.answer == self.task.label) - 0.1 * self.mistakes)
