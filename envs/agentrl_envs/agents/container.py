"""An agent in a container image, by its command line alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field

from agentrl import AgentEnv, Endpoint, SessionOptions, Task
from agentrl.sandbox import Sandbox, SandboxKilledError
from agentrl.types import JSON
from agentrl_envs.agents.openai_agents import asked
from agentrl_sandbox.needs import needs
from agentrl_sandbox.pool import SandboxPool
from agentrl_sandbox.spec import SandboxSpec

_OUTPUT = 40_000
"""Bytes of the program's output that are kept."""


class ContainerAgentConfig(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    command: str = Field(min_length=1)
    """A command line of the shell that starts the agent. The task is in the file `task.txt` of its work folder."""
    spec: SandboxSpec = SandboxSpec(memory_mb=2048)
    """What a sandbox is and may use. Its image holds the agent, and python3, which connects it with its model."""
    backend: str = "auto"
    """What runs the sandboxes: docker, bubblewrap, local (trusted code only), auto, or a dotted path."""
    size: int | None = Field(None, gt=0)
    """Sandboxes at a time; null: as many as the machine holds."""
    agent_s: float = Field(1800.0, gt=0)
    """Seconds that the agent may take."""


class ContainerAgent(AgentEnv):
    """A task, given to the program of an image, which reaches only its model. It needs no code but a reward.

    `self.result` has the program's `exit_code`, the end of its `stdout` and `stderr`, and whether it `timed_out`; or
    `killed`, the reason why its sandbox ended. A subclass may score the files that are left in `self.box`.
    """

    config: ContainerAgentConfig
    shared: SandboxPool
    box: Sandbox
    session = SessionOptions(images="omit", replies=100)
    tested: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def share(cls, config: ContainerAgentConfig) -> SandboxPool:
        return SandboxPool(config.backend, config.spec, size=config.size)

    @classmethod
    def needs(cls, config: ContainerAgentConfig, episodes: int) -> Sequence[str]:
        return needs(config.backend, config.spec, episodes, config.size)

    async def run(self, task: Task, endpoint: Endpoint) -> JSON:
        spec = self.config.spec
        reaching = spec.model_copy(update={"sockets": {**spec.sockets, **endpoint.sockets}})
        self.box = await self.enter(self.shared.acquire(reaching))
        await self.box.write_file("task.txt", asked(task))
        inside = await endpoint.inside(self.box)
        try:
            done = await self.box.exec(
                self.config.command, env=inside.variables(), timeout=self.config.agent_s, max_output=_OUTPUT
            )
        except SandboxKilledError as exc:  # the agent's own doing: it is scored
            return {"killed": str(exc)}
        return {
            "exit_code": done.exit_code,
            "stdout": done.stdout,
            "stderr": done.stderr[-2000:],
            "timed_out": done.timed_out,
        }
