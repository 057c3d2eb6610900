"""What the harnesses of coding agents share: a task's sandbox, the agent in it, and the grade of what it leaves."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from agentrl import AgentEnv, Endpoint, Reward, Task, Trajectory
from agentrl.sandbox import Sandbox, SandboxKilledError
from agentrl.types import JSON
from agentrl_envs.agents.start import Start
from agentrl_envs.coding.grading import grade, total
from agentrl_envs.coding.problem import Grade, Problem, load_problem
from agentrl_envs.coding.work import prepare
from agentrl_sandbox.needs import needs
from agentrl_sandbox.pool import SandboxPool
from agentrl_sandbox.spec import SandboxSpec

_SAID = 2000
"""Characters of the agent's own output that the trajectory keeps."""
_LOG = 4000


class CodingAgentConfig(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    backend: str = "auto"
    """What runs the sandboxes: docker, bubblewrap, local (trusted code only), auto, or a dotted path."""
    spec: SandboxSpec = SandboxSpec(memory_mb=2048)
    """What a sandbox is and may use. Its image holds the agent's program, and python3. A task may change it."""
    size: int | None = Field(None, gt=0)
    """Sandboxes for episodes at a time; null: as many as the machine holds. Grading has its own beside them."""
    program: str | None = None
    """The agent's program; null: by its usual name."""
    agent_s: float = Field(3000.0, gt=0)
    """Seconds that the agent may take."""
    grading: Literal["task", "clean", "same"] = "task"
    """Where the tests run: see `CodingConfig.grading`."""
    partial: bool = False
    """Reward the share of tests that pass, not only all of them."""


class CodingAgent(AgentEnv):
    """A program that solves a programming task in a sandbox, from which it reaches its model and nothing else.

    A subclass says how its program is started. Tasks are those of `agentrl_envs.coding`, graded in the same way.
    `self.result` is the program's exit code and the end of its output.
    """

    config: CodingAgentConfig
    shared: SandboxPool
    program: ClassVar[str]
    tested: ClassVar[tuple[str, ...]]
    """Versions of the program with which this harness was tested."""

    @classmethod
    def share(cls, config: CodingAgentConfig) -> SandboxPool:
        return SandboxPool(config.backend, config.spec, size=config.size)

    @classmethod
    def needs(cls, config: CodingAgentConfig, episodes: int) -> Sequence[str]:
        return needs(config.backend, config.spec, episodes, config.size)

    def start(self, endpoint: Endpoint, instruction: str) -> Start:
        """The program's command line. `endpoint` is as the sandbox sees it."""
        raise NotImplementedError(f"{type(self).__name__} has no start")

    @property
    def path(self) -> str:
        """The program as the sandbox finds it."""
        return self.config.program or self.program

    async def run(self, task: Task, endpoint: Endpoint) -> JSON:
        self.problem: Problem = await self.call(load_problem, task)
        self.grades: list[Grade] = []
        changes = dict(self.problem.spec) | ({"image": self.problem.image} if self.problem.image else {})
        self.spec = SandboxSpec.model_validate({**self.config.spec.model_dump(), **changes})
        reaching = self.spec.model_copy(update={"sockets": {**self.spec.sockets, **endpoint.sockets}})
        self.box: Sandbox = await self.enter(self.shared.acquire(reaching))
        there = await endpoint.inside(self.box)
        until = time.monotonic() + min(self.config.agent_s, self.problem.agent_s or self.config.agent_s)
        while True:
            step = self.problem.steps[len(self.grades)]
            await prepare(self.box, step)
            try:
                left = max(until - time.monotonic(), 1.0)
                ended = await self.start(there, step.instruction).run(self.box, timeout=left)
            except SandboxKilledError as exc:
                return {"killed": str(exc)}
            said = {"exit_code": ended.exit_code, "output": (ended.stdout + ended.stderr)[-_SAID:]}
            if ended.timed_out or len(self.grades) == len(self.problem.steps) - 1:
                return said
            self.grades.append(await self._grade())
            if step.min_score is not None and self.grades[-1].score < step.min_score:
                return said

    async def score(self, trajectory: Trajectory) -> Reward:
        """The total of the steps' scores, and the share of tests that passed."""
        if len(self.grades) < len(self.problem.steps) and not self._failed():
            try:
                self.grades.append(await self._grade())
            except SandboxKilledError as exc:
                trajectory.info["sandbox_killed"] = str(exc)
        trajectory.info["grading"] = "\n".join(made.log for made in self.grades)[-_LOG:]
        return total(self.problem, self.grades, partial=self.config.partial)

    def _failed(self) -> bool:
        pairs = zip(self.problem.steps, self.grades, strict=False)
        return any(step.min_score is not None and made.score < step.min_score for step, made in pairs)

    async def _grade(self) -> Grade:
        clean = {"task": None, "clean": True, "same": False}[self.config.grading]
        steps = self.problem.steps[: len(self.grades) + 1]
        return await grade(self.box, steps, pool=self.shared, spec=self.spec, clean=clean)
