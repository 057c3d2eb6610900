"""Shows the whole conversation in each answer."""

from agentrl import Env, StepResult, Task

CAPITALS = {"France": "Paris", "Spain": "Madrid", "Italy": "Rome"}


class Chatty(Env):
    @classmethod
    def tasks(cls, config, split):
        start = 0 if split == "train" else 50
        for n, (country, capital) in enumerate(CAPITALS.items()):
            yield Task(prompt=f"What is the capital of {country}?", label=capital, seed=start + n)

    async def reset(self, task):
        self.told = [task.prompt]
        return task.prompt

    async def step(self, action):  # found here
        self.told.append(f"You said: {action.content[:20]}")
        if len(self.told) > 10:
            return StepResult(done=True)
        return StepResult("\n".join(self.told))

    async def score(self, trajectory):
        return float(trajectory.answer == self.task.label)
