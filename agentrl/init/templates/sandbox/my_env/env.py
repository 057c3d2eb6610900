"""The environment: a shell in a sandbox, and a reward for what the sandbox holds at the end."""

from collections.abc import Iterable, Sequence
from itertools import permutations
from typing import Literal

from pydantic import BaseModel

from agentrl import Env, Observation, Task, Trajectory, tool
from agentrl_sandbox import SandboxPool
from agentrl_sandbox.needs import needs
from agentrl_sandbox.spec import SandboxSpec

NAMES = ["sea", "river", "mountain", "city", "school", "town", "paper", "food", "light", "money"]


class MyEnvConfig(BaseModel):
    """What `env_config` in train.yaml, or `--set env_config.KEY=VALUE`, may hold."""

    backend: str = "auto"
    """docker if an engine answers, else bubblewrap; local isolates nothing, and is for scripted players and `tiny`."""


class MyEnv(Env):
    """Copy a file with bash, in a sandbox."""

    config: MyEnvConfig
    shared: SandboxPool

    @classmethod
    def share(cls, config: MyEnvConfig) -> SandboxPool:
        """As many sandboxes as the machine holds, made ahead. Each is used for one episode."""
        return SandboxPool(config.backend, SandboxSpec(memory_mb=256, cpus=0.25), rate=50)

    @classmethod
    def needs(cls, config: MyEnvConfig, episodes: int) -> Sequence[str]:
        return needs(config.backend, SandboxSpec(memory_mb=256, cpus=0.25), episodes)

    @classmethod
    def tasks(cls, config: MyEnvConfig, split: Literal["train", "eval"]) -> Iterable[Task]:
        """Every fifth pair of names is held out."""
        for number, (old, new) in enumerate(permutations(NAMES, 2)):
            if (number % 5 == 0) == (split == "eval"):
                yield Task(prompt=f"Copy {old} to {new}", metadata={"old": old, "new": new})

    async def reset(self, task: Task) -> Observation:
        self.box = await self.enter(self.shared.acquire())  # given back when the episode ends, however it ends
        self.secret = f"secret {self.rng.random()}\n"
        await self.box.write_file(task.metadata["old"], self.secret)
        return task.prompt

    @tool(timeout=60, parallel=False)
    async def bash(self, command: str) -> str:
        """Run a bash command."""
        done = await self.box.exec(command, timeout=30)
        return f"{done.stdout}{done.stderr}".strip()[:2000] or "ok"

    async def score(self, trajectory: Trajectory) -> float:
        copy = await self.box.exec(f"cat {self.task.metadata['new']}")
        return float(copy.stdout == self.secret)
