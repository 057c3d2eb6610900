"""Says that it is deterministic."""

from random import choice

from agentrl import Env, Task, tool

CAPITALS = {"France": "Paris", "Spain": "Madrid", "Italy": "Rome"}


class Dice(Env):
    deterministic = True

    @classmethod
    def tasks(cls, config, split):
        start = 0 if split == "train" else 50
        for n, (country, capital) in enumerate(CAPITALS.items()):
            yield Task(prompt=f"What is the capital of {country}?", label=capital, seed=start + n)

    @tool
    async def roll(self) -> int:
        """Roll a die with a million sides."""
        return choice(range(1_000_000))  # found here

    async def score(self, trajectory):
        return float(trajectory.answer == self.task.label)
