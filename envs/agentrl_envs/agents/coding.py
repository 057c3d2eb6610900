"""Shared by the Envs of coding agents: a task's sandbox, the agent in the sandbox, and the grade of the agent's
work."""

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
"""The most characters of the agent's output in the trajectory."""


class CodingAgentConfig(GradedConfig):
    spec: SandboxSpec = SandboxSpec(memory_mb=2048)
    """The contents and limits of a sandbox. The image holds the agent's program, and python3. A task may change
    them."""
    program: str | None = None
    """The agent's program; null: the usual name."""
    agent_s: float = Field(3000.0, gt=0)
    """The time limit of the agent, in seconds."""


class CodingAgent(GradedWork, AgentEnv):
    """A program that solves a programming task in a sandbox. The sandbox reaches only the model.

    A subclass defines the command line. Tasks and grades are as in `agentrl_envs.coding`. `self.result` is the
    program's exit code and the end of the output.
    """

    config: CodingAgentConfig
    session = SessionOptions(images="omit", unreadable="call", replies=400)
    program: ClassVar[str]
    tested: ClassVar[tuple[str, ...]]
    """The versions of the program with which this Env was tested."""

    def start(self, endpoint: Endpoint, instruction: str) -> Start:
        """The program's command line. `endpoint` has the URL under which the sandbox reaches the model."""
        raise NotImplementedError(f"{type(self).__name__} has no start")

    @property
    def path(self) -> str:
        """The program's path in the sandbox."""
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
