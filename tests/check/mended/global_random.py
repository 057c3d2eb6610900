"""A number to be guessed."""

from agentrl import Env, Task, tool


class Guess(Env):
    @classmethod
    def tasks(cls, config, split):
        for n in range(5):
            yield Task(prompt="Guess my number.", seed=n + (1000 if split == "eval" else 1))

    async def reset(self, task):
        self.number = self.rng.randint(1, 100)
        return f"{task.prompt} It is at most {self.number + 10}."

    @tool
    async def guess(self, number: int) -> str:
        """Guess the number."""
        return "right" if number == self.number else "higher" if number < self.number else "lower"

    async def score(self, trajectory):
        return float(trajectory.answer == str(self.number))
