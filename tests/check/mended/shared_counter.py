"""Passages are handed out one after the other."""

from agentrl import Env, Task, tool

CAPITALS = {"France": "Paris", "Spain": "Madrid", "Italy": "Rome"}


class Reader(Env):
    next = 0

    @classmethod
    def tasks(cls, config, split):
        start = 0 if split == "train" else 50
        for n, (country, capital) in enumerate(CAPITALS.items()):
            yield Task(prompt=f"What is the capital of {country}?", label=capital, seed=start + n)

    @classmethod
    def share(cls, config):
        return {"passages": list(CAPITALS.values())}

    @tool
    async def read(self) -> str:
        """Read the next passage."""
        passages = self.shared["passages"]
        passage = passages[self.next % len(passages)]
        self.next += 1
        return passage

    async def score(self, trajectory):
        return float(trajectory.answer == self.task.label)
