"""Shows the countries in the order of a set."""

from agentrl import Env, Task, tool

CAPITALS = {"France": "Paris", "Spain": "Madrid", "Italy": "Rome"}


class Menu(Env):
    @classmethod
    def tasks(cls, config, split):
        start = 0 if split == "train" else 50
        for n, (country, capital) in enumerate(CAPITALS.items()):
            yield Task(prompt=f"What is the capital of {country}?", label=capital, seed=start + n)

    async def reset(self, task):
        names = {country for country in [*CAPITALS, "Chile", "Peru", "Cuba", "Iran", "Oman"]}
        return f"{task.prompt} Countries: {', '.join(sorted(names))}"

    @tool
    async def look(self, country: str) -> str:
        """Look a country up."""
        return CAPITALS.get(country, "unknown")

    async def score(self, trajectory):
        return float(trajectory.answer == self.task.label)
