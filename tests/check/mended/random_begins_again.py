"""A die of its own."""

from random import Random

from agentrl import Env, Task, tool

CAPITALS = {"France": "Paris", "Spain": "Madrid", "Italy": "Rome"}


class OwnDie(Env):
    @classmethod
    def tasks(cls, config, split):
        start = 0 if split == "train" else 50
        for n, (country, capital) in enumerate(CAPITALS.items()):
            yield Task(prompt=f"What is the capital of {country}?", label=capital, seed=start + n)

    async def reset(self, task):
        self.die = Random(task.seed)
        return task.prompt

    @tool
    async def roll(self) -> int:
        """Roll a die."""
        return self.die.randrange(10**6)

    async def score(self, trajectory):
        return float(trajectory.answer == self.task.label)

    async def snapshot(self):
        return self.die.getstate()

    async def restore(self, state):
        self.die = Random()
        self.die.setstate(state)
