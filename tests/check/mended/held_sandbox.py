"""Takes its sandbox by hand."""

from agentrl import Env, Task, tool
from agentrl_sandbox import SandboxPool, SandboxSpec
from agentrl_sandbox.fake.backend import FakeBackend

CAPITALS = {"France": "Paris", "Spain": "Madrid", "Italy": "Rome"}


class ByHand(Env):
    @classmethod
    def tasks(cls, config, split):
        start = 0 if split == "train" else 50
        for n, (country, capital) in enumerate(CAPITALS.items()):
            yield Task(prompt=f"What is the capital of {country}?", label=capital, seed=start + n)

    @classmethod
    def share(cls, config):
        return SandboxPool(FakeBackend(), SandboxSpec(), size=500)

    async def reset(self, task):
        self.box = await self.enter(self.shared.acquire())
        return task.prompt

    @tool
    async def bash(self, command: str) -> str:
        """Run a command."""
        return f"{self.box.sandbox_id and command[:20]}: done"

    async def score(self, trajectory):
        return float(trajectory.answer == self.task.label)
