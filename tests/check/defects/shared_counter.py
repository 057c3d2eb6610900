"""Passages are handed out one after the other."""

from agentrl import Env, Task, tool

CAPITALS = {"France": "Paris", "Spain": "Madrid", "Italy": "Rome"}


class Reader(Env):
    @classmethod
    def tasks(cls, config, split):
        start = 0 if split == "train" else 50
        for n, (country, capital) in enumerate(CAPITALS.items()):
            yield Task(prompt=f"What is the capital of {country}?", label=capital, seed=start + n)

    @classmethod
    def share(cls, config):
        return {"next": 0, "passages": list(CAPITALS.values())}

    @tool
    async def read(self) -> str:
        """Read the next passage."""
        passages = self.shared["passages"]
        passage = passages[self.shared["next"] % len(passages)]
        self.shared["next"] += 1  # found here
        return passage

    async def score(self, trajectory):
        return float(trajectory.answer == self.task.label)
