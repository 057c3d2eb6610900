"""The environment: a shell in a sandbox, and a reward for what the sandbox holds at the end."""

from collections.abc import Iterable, Sequence
from typing import Literal

from pydantic import BaseModel

from agentrl import Env, Observation, Task, Trajectory, tool
from agentrl_sandbox import SandboxPool
from agentrl_sandbox.needs import needs
from agentrl_sandbox.spec import SandboxSpec

NAMES = ["sea", "river", "mountain", "city", "school", "town", "paper", "food", "light", "money"]
TESTS = {"file": "test -f", "folder": "test -d"}


class MyEnvConfig(BaseModel):
    """What `env_config` in train.yaml, or `--set env_config.KEY=VALUE`, may hold."""

    backend: str = "auto"
    """docker if an engine answers, else bubblewrap; local isolates nothing, and is for scripted players and `tiny`."""


class MyEnv(Env):
    """Make a file or a folder with bash, in a sandbox."""

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
        """Every third one is held out."""
        for number, (kind, name) in enumerate((kind, name) for kind in TESTS for name in NAMES):
            if (number % 3 == 0) == (split == "eval"):
                yield Task(prompt=f"Make the {kind} {name}", metadata={"kind": kind, "name": name})

    async def reset(self, task: Task) -> Observation:
        self.box = await self.enter(self.shared.acquire())  # given back when the episode ends, however it ends
        return task.prompt

    @tool(timeout=60, parallel=False)
    async def bash(self, command: str) -> str:
        """Run a bash command."""
        done = await self.box.exec(command, timeout=30)
        return f"{done.stdout}{done.stderr}".strip()[:2000] or "ok"

    async def score(self, trajectory: Trajectory) -> float:
        asked = self.task.metadata
        return float((await self.box.exec(f"{TESTS[asked['kind']]} {asked['name']}")).exit_code == 0)
