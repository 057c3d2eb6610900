"""Writes a log of each episode."""

import os

from agentrl import Env, Task, tool

CAPITALS = {"France": "Paris", "Spain": "Madrid", "Italy": "Rome"}


class Logged(Env):
    log = None

    @classmethod
    def tasks(cls, config, split):
        start = 0 if split == "train" else 50
        for n, (country, capital) in enumerate(CAPITALS.items()):
            yield Task(prompt=f"What is the capital of {country}?", label=capital, seed=start + n)

    def reset(self, task):
        self.log = open(os.devnull, "w")
        return task.prompt

    @tool
    def look(self, country: str) -> str:
        """Look a country up."""
        self.log.write(country.encode("ascii", "replace").decode())
        return CAPITALS.get(country, "unknown")

    def close(self):
        if self.log is not None:
            self.log.close()

    def score(self, trajectory):
        return float(trajectory.answer == self.task.label)
