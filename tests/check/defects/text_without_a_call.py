"""Expects a call in each turn."""

from agentrl import Env, StepResult, Task, tool

CAPITALS = {"France": "Paris", "Spain": "Madrid", "Italy": "Rome"}


class Strict(Env):
    @classmethod
    def tasks(cls, config, split):
        start = 0 if split == "train" else 50
        for n, (country, capital) in enumerate(CAPITALS.items()):
            yield Task(prompt=f"What is the capital of {country}?", label=capital, seed=start + n)

    @tool
    async def look(self, country: str) -> str:
        """Look a country up."""
        return CAPITALS.get(country, "unknown")

    async def step(self, action):
        if action.calls[0].name == "stop":  # found here
            return StepResult(done=True)
        return await self.run_tools(action)

    async def score(self, trajectory):
        return float(trajectory.answer == self.task.label)
