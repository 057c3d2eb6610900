"""Shared by environments of coding tasks: a task's sandbox, and the grade of the agent's work in the sandbox."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from agentrl import Env, Reward, Task, Trajectory
from agentrl.sandbox import Sandbox, SandboxKilledError
from agentrl_envs.coding.grading import grade, total
from agentrl_envs.coding.images import images_of, missing_lines
from agentrl_envs.coding.problem import Grade, Problem, load_problem
from agentrl_sandbox.needs import needs
from agentrl_sandbox.pool import SandboxPool
from agentrl_sandbox.spec import SandboxSpec

_LOG = 4000
"""The most characters of the tests' output in the trajectory."""


class GradedConfig(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    backend: str = "auto"
    """The back end of the sandboxes: docker, bubblewrap, local (trusted code only), auto, or a dotted path."""
    spec: SandboxSpec = SandboxSpec()
    """The contents and limits of a sandbox. A task may change them."""
    size: int | None = Field(None, gt=0)
    """The number of concurrent sandboxes for episodes; null: as many as the machine's memory and processors
    allow. Grading uses extra sandboxes."""
    grading: Literal["task", "clean", "same"] = "task"
    """Where the tests run. clean: in a second sandbox with copies of the agent's files. same: in the agent's sandbox.
    task: as the task's format decides, which is clean unless the tests check more than files."""
    partial: bool = False
    """Whether the reward is the share of passed tests. If not, the reward is 1 if all tests pass, and else 0."""


class GradedWork(Env):
    """The steps of a task in the sandbox `self.box`, graded in order. `self.grades` has the grades so far.

    If the work ends the sandbox (by using up the memory, for example), the reward is 0, and the trajectory's
    `info["sandbox_killed"]` has the reason. `info["grading"]` has the tests' output, and `info["sandbox_s"]` the
    seconds spent on sandboxes.
    """

    config: GradedConfig
    shared: SandboxPool
    problem: Problem
    spec: SandboxSpec
    box: Sandbox

    @classmethod
    def share(cls, config: GradedConfig) -> SandboxPool:
        return SandboxPool(config.backend, config.spec, size=config.size)

    @classmethod
    def needs(cls, config: GradedConfig, episodes: int) -> Sequence[str]:
        return needs(config.backend, config.spec, episodes, config.size)

    @classmethod
    def missing_for(cls, config: GradedConfig, tasks: Iterable[Task], /) -> Sequence[str]:
        images = images_of(tasks, config.spec)
        with ThreadPoolExecutor(1) as thread:  # an event loop may run in this one
            return thread.submit(asyncio.run, missing_lines(config.backend, images)).result()

    async def load(self, grades: list[Grade]) -> None:
        """Read the task and the settings of the sandbox. `grades` are the grades of earlier steps."""
        self.problem = await self.call(load_problem, self.task)
        changes = dict(self.problem.spec) | ({"image": self.problem.image} if self.problem.image else {})
        self.spec = SandboxSpec.model_validate({**self.config.spec.model_dump(), **changes})
        self.grades, self.sandbox_s, self.killed = grades, 0.0, ""

    async def score(self, trajectory: Trajectory) -> Reward:
        """The reward from the scores of all steps. Parts of the grades, such as `tests`, become parts of the reward."""
        killed = self.killed or trajectory.info.get("sandbox_killed")
        if not killed and not self.over:
            try:
                with self.timed():
                    await self.grade_step()
            except SandboxKilledError as exc:
                killed = str(exc)
        if killed:
            trajectory.info["sandbox_killed"] = killed
            return Reward(0.0)
        trajectory.info["sandbox_s"] = round(self.sandbox_s, 3)
        trajectory.info["grading"] = "\n".join(grade.log for grade in self.grades)[-_LOG:]
        return total(self.problem, self.grades, partial=self.config.partial)

    @property
    def over(self) -> bool:
        """Whether the task is over: a step was not good enough to continue, or all steps are graded."""
        graded = zip(self.problem.steps, self.grades, strict=False)
        failed = any(step.min_score is not None and grade.score < step.min_score for step, grade in graded)
        return failed or len(self.grades) == len(self.problem.steps)

    async def grade_step(self) -> None:
        """Grade the current step. Raises SandboxKilledError if the tests end the sandbox."""
        clean = {"task": None, "clean": True, "same": False}[self.config.grading]
        steps = self.problem.steps[: len(self.grades) + 1]
        self.grades.append(await grade(self.box, steps, pool=self.shared, spec=self.spec, clean=clean))

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Within `with`, add the elapsed time to the seconds that this episode spends on sandboxes."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.sandbox_s += time.monotonic() - began
