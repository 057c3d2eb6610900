"""An agent in a container image, started by a command line."""

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
"""The most bytes of the program's output."""


class ContainerAgentConfig(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    command: str = Field(min_length=1)
    """A shell command that starts the agent. The task is in the file `task.txt` of the work folder."""
    spec: SandboxSpec = SandboxSpec(memory_mb=2048)
    """The contents and limits of a sandbox. The image holds the agent, and python3 for the connection to the model."""
    backend: str = "auto"
    """The back end of the sandboxes: docker, bubblewrap, local (trusted code only), auto, or a dotted path."""
    size: int | None = Field(None, gt=0)
    """The most sandboxes at a time; null: as many as the machine's memory and processors allow."""
    agent_s: float = Field(1800.0, gt=0)
    """The time limit of the agent, in seconds."""


class ContainerAgent(AgentEnv):
    """A task for the agent program in an image. The program reaches only the model. A subclass needs only a reward.

    `self.result` has the program's `exit_code`, the end of `stdout` and `stderr`, and `timed_out`; or `killed`, the
    reason why the sandbox ended. A subclass may score the files in `self.box`.
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
