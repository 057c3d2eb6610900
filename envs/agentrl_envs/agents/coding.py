"""Shared by the harnesses of coding agents: a task's sandbox, the agent in it, and the grade of its work."""

from __future__ import annotations

import time
from typing import ClassVar

from pydantic import Field

from agentrl import AgentEnv, Endpoint, SessionOptions, Task
from agentrl.sandbox import SandboxKilledError
from agentrl.types import JSON
from agentrl_envs.agents.start import Start
from agentrl_envs.coding.graded import GradedConfig, GradedWork
from agentrl_envs.coding.work import prepare
from agentrl_sandbox.spec import SandboxSpec

_SAID = 2000
"""Characters of the agent's own output that the trajectory keeps."""


class CodingAgentConfig(GradedConfig):
    spec: SandboxSpec = SandboxSpec(memory_mb=2048)
    """What a sandbox is and may use. Its image holds the agent's program, and python3. A task may change it."""
    program: str | None = None
    """The agent's program; null: by its usual name."""
    agent_s: float = Field(3000.0, gt=0)
    """Seconds that the agent may take."""


class CodingAgent(GradedWork, AgentEnv):
    """A program that solves a programming task in a sandbox. From there it reaches only its model.

    A subclass defines how its program is started. Tasks are those of `agentrl_envs.coding`, graded in the same way.
    `self.result` is the program's exit code and the end of its output.
    """

    config: CodingAgentConfig
    session = SessionOptions(images="omit", unreadable="call", replies=400)
    program: ClassVar[str]
    tested: ClassVar[tuple[str, ...]]
    """Versions of the program with which this harness was tested."""

    def start(self, endpoint: Endpoint, instruction: str) -> Start:
        """The program's command line. `endpoint` is as the sandbox sees it."""
        raise NotImplementedError(f"{type(self).__name__} has no start")

    @property
    def path(self) -> str:
        """The program as the sandbox finds it."""
        return self.config.program or self.program

    async def run(self, task: Task, endpoint: Endpoint) -> JSON:
        await self.load([])
        reaching = self.spec.model_copy(update={"sockets": {**self.spec.sockets, **endpoint.sockets}})
        self.box = await self.enter(self.shared.acquire(reaching))
        inner_endpoint = await endpoint.inside(self.box)
        until = time.monotonic() + min(self.config.agent_s, self.problem.agent_s or self.config.agent_s)
        while True:
            step = self.problem.steps[len(self.grades)]
            await prepare(self.box, step)
            try:
                seconds = max(until - time.monotonic(), 1.0)
                start = self.start(inner_endpoint, step.instruction)
                ended = await start.run(self.box, timeout=seconds, activate=self.problem.activate)
            except SandboxKilledError as exc:
                self.killed = str(exc)
                return {"killed": self.killed}
            result = {"exit_code": ended.exit_code, "output": (ended.stdout + ended.stderr)[-_SAID:]}
            if ended.timed_out or len(self.grades) == len(self.problem.steps) - 1:
                return result
            await self.grade_step()
            if self.over:
                return result
