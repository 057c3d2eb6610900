"""A budget that is configured."""

from pydantic import BaseModel

from agentrl import Env, Task, ToolError, tool

CAPITALS = {"France": "Paris", "Spain": "Madrid", "Italy": "Rome"}


class Budget(BaseModel):
    questions: int = 1000


class Frugal(Env):
    config: Budget
    asked = 0

    @classmethod
    def tasks(cls, config, split):
        start = 0 if split == "train" else 50
        for n, (country, capital) in enumerate(CAPITALS.items()):
            yield Task(prompt=f"What is the capital of {country}?", label=capital, seed=start + n)

    @tool
    async def look(self, country: str) -> str:
        """Look a country up; each question costs one of the budget."""
        self.asked += 1
        if self.asked > self.config.questions:
            raise ToolError("there are no questions left")
        return f"{CAPITALS.get(country, 'unknown')}"

    async def score(self, trajectory):
        return float(trajectory.answer == self.task.label)
