"""An Env of two turns: the row's image, then another one."""

from agentrl import Env, StepResult
from tests.episode.pictures import B


class Pictures(Env):
    async def reset(self, task):
        self.steps = 0
        return task.prompt

    async def step(self, action):
        self.steps += 1
        return StepResult([{"role": "user", "content": [B, "And here?"]}], done=self.steps > 1)

    def score(self, trajectory):
        return 1.0
