"""Counts the questions; the third is the last."""

from agentrl import Env, Task, ToolResult, tool

CAPITALS = {"France": "Paris", "Spain": "Madrid", "Italy": "Rome"}


class Three(Env):
    asked = 0
    log = ()

    @classmethod
    def tasks(cls, config, split):
        start = 0 if split == "train" else 50
        for n, (country, capital) in enumerate(CAPITALS.items()):
            yield Task(prompt=f"What is the capital of {country}?", label=capital, seed=start + n)

    @tool
    async def look(self, country: str) -> ToolResult:
        """Look a country up, three times at most."""
        self.asked += 1
        self.log = (*self.log, country)
        return ToolResult(f"{self.asked}: {CAPITALS.get(country, 'unknown')}", done=self.asked == 3)

    async def score(self, trajectory):
        return float(trajectory.answer == self.task.label)

    async def snapshot(self):  # found here
        return {"log": self.log}

    async def restore(self, state):
        self.log = state["log"]
