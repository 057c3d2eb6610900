"""Counts primes where the event loop runs."""

from agentrl import Env, Task, tool

CAPITALS = {"France": "Paris", "Spain": "Madrid", "Italy": "Rome"}


def primes(below):
    found = []
    for n in range(2, below):
        if all(n % p for p in range(2, n)):
            found.append(n)
    return found


class Primes(Env):
    @classmethod
    def tasks(cls, config, split):
        start = 0 if split == "train" else 50
        for n, (country, capital) in enumerate(CAPITALS.items()):
            yield Task(prompt=f"What is the capital of {country}?", label=capital, seed=start + n)

    @tool
    def count(self) -> int:
        """Count the primes below 12000."""
        return len(primes(12000))

    async def score(self, trajectory):
        return float(trajectory.answer == self.task.label)
