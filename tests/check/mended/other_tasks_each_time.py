"""Makes its tasks by chance."""

import random

from agentrl import Env, Task, tool


class Chance(Env):
    @classmethod
    def tasks(cls, config, split):
        rng = random.Random(split)
        for _ in range(8):
            n = rng.randrange(10**6)
            yield Task(prompt=f"What is twice {n}?", label=str(2 * n))

    @tool
    async def double(self, number: int) -> int:
        """Twice a number."""
        return 2 * number

    async def score(self, trajectory):
        return float(trajectory.answer == self.task.label)
