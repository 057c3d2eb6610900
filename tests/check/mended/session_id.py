"""Gives each conversation a number."""

from agentrl import Env, Task, tool

CAPITALS = {"France": "Paris", "Spain": "Madrid", "Italy": "Rome"}


class Ticket(Env):
    @classmethod
    def tasks(cls, config, split):
        start = 0 if split == "train" else 50
        for n, (country, capital) in enumerate(CAPITALS.items()):
            yield Task(prompt=f"What is the capital of {country}?", label=capital, seed=start + n)

    def reset(self, task):
        ticket = self.rng.randrange(10**6)
        return [{"role": "system", "content": f"Ticket {ticket}."}, {"role": "user", "content": task.prompt}]

    @tool
    def look(self, country: str) -> str:
        """Look a country up."""
        return CAPITALS.get(country, "unknown")

    def score(self, trajectory):
        return float(trajectory.answer == self.task.label)
