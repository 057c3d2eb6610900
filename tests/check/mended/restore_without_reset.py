"""restore forgets what reset has built."""

from agentrl import Env, Task, tool

CAPITALS = {"France": "Paris", "Spain": "Madrid", "Italy": "Rome"}


class Built(Env):
    asked = 0

    @classmethod
    def tasks(cls, config, split):
        start = 0 if split == "train" else 50
        for n, (country, capital) in enumerate(CAPITALS.items()):
            yield Task(prompt=f"What is the capital of {country}?", label=capital, seed=start + n)

    async def reset(self, task):
        self.atlas = dict(CAPITALS)
        return task.prompt

    @tool
    async def look(self, country: str) -> str:
        """Look a country up."""
        self.asked += 1
        return self.atlas.get(country, "unknown")

    async def score(self, trajectory):
        return float(trajectory.answer == self.task.label)

    async def snapshot(self):
        return self.asked

    async def restore(self, state):
        self.asked = state
        self.atlas = dict(CAPITALS)
