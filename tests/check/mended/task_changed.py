"""Hands out the hints of a task."""

from agentrl import Env, Task, tool

CAPITALS = {"France": "Paris", "Spain": "Madrid", "Italy": "Rome"}


class Hints(Env):
    @classmethod
    def tasks(cls, config, split):
        for country, capital in CAPITALS.items():
            hints = [f"It is in {country}.", f"It begins with {capital[0]}.", f"In {split}, it has people."]
            yield Task(prompt=f"Guess a city of {country}.", label=capital, metadata={"hints": hints})

    async def reset(self, task):
        self.hints = list(task.metadata["hints"])
        return task.prompt

    @tool
    async def hint(self) -> str:
        """Get one more hint."""
        return self.hints.pop(0) if self.hints else "no more"

    async def score(self, trajectory):
        return float(trajectory.answer == self.task.label)
