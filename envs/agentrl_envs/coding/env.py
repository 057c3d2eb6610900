"""The environment: an agent works in a sandbox by tools, and what it leaves there is graded."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from agentrl import Action, Env, Reward, StepResult, Task, ToolResult, Trajectory, tool
from agentrl.errors import CallError, leaves
from agentrl.sandbox import Sandbox, SandboxKilledError, Snapshot
from agentrl.tool_calls import exec_own_tool
from agentrl.types import JSON, ToolCall, ToolSpec
from agentrl_envs.coding.grading import grade, total
from agentrl_envs.coding.problem import Grade, Problem, load_problem
from agentrl_envs.coding.tools import Tools
from agentrl_envs.coding.work import prepare
from agentrl_sandbox.needs import needs
from agentrl_sandbox.pool import SandboxPool
from agentrl_sandbox.shell import Shell, ShellState
from agentrl_sandbox.spec import SandboxSpec

_TOOL_S = 270.0
"""Deadline of a tool: a command's own, and time to end it and to grade a step."""
_LONGEST_COMMAND_S = 240.0
_SUBMIT = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""A command that writes this as its first line ends the work when `bash` is the only tool, as in mini-swe-agent."""
_LOG = 4000
"""Characters of the tests' output that the trajectory keeps."""


class CodingConfig(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    backend: str = "auto"
    """What runs the sandboxes: docker, bubblewrap, local (trusted code only), auto, or a dotted path."""
    spec: SandboxSpec = SandboxSpec()
    """What a sandbox is and may use. A task may change it."""
    size: int | None = Field(None, gt=0)
    """Sandboxes for episodes at a time; null: as many as the machine holds. Grading has its own beside them."""
    tools: Literal["full", "bash"] = "full"
    """full: bash, read, edit, search, submit. bash: only that."""
    command_s: float = Field(60.0, gt=0, le=_LONGEST_COMMAND_S)
    """Seconds that a command of the agent's may take."""
    output: int = Field(10_000, ge=100)
    """Characters of a tool's result; the middle of a longer one is cut."""
    grading: Literal["task", "clean", "same"] = "task"
    """Where the tests run. clean: in a second sandbox that holds the agent's files alone. same: in the agent's own.
    task: as the task's format says, which is clean unless its tests look at more than files."""
    partial: bool = False
    """Reward the share of tests that pass, not only all of them."""


class CodingEnv(Env):
    """Solve a programming task in a sandbox. The reward comes from tests that run after the agent has finished.

    The model ends its work by `submit`, or by a turn without a tool call. If its own commands end the sandbox (they use
    up its memory, say), the episode ends with reward 0, and the trajectory's `info["sandbox_killed"]` says why. Its
    `info["grading"]` has what the tests wrote, and `info["sandbox_s"]` the seconds spent on sandboxes.
    """

    config: CodingConfig
    shared: SandboxPool

    @classmethod
    def share(cls, config: CodingConfig) -> SandboxPool:
        return SandboxPool(config.backend, config.spec, size=config.size)

    @classmethod
    def needs(cls, config: CodingConfig, episodes: int) -> Sequence[str]:
        return needs(config.backend, config.spec, episodes, config.size)

    def tools(self) -> Sequence[ToolSpec]:
        own = [made.spec for name, made in self._agentrl_tools.items() if self.config.tools == "full" or name == "bash"]
        return [*own, *self.task.tools]

    async def reset(self, task: Task) -> str:
        await self._load()
        self.box: Sandbox = await self.enter(self.shared.acquire(self.spec))
        self._begin(ShellState(), [])
        with self._timed():
            await prepare(self.box, self.problem.steps[0])
        return self.problem.steps[0].instruction

    async def exec_tool(self, call: ToolCall) -> ToolResult | JSON:
        if self.config.tools == "bash" and call.name != "bash" and call.name in self._agentrl_tools:
            raise CallError(f"there is no tool {call.name!r}; the tools are: bash")
        return await exec_own_tool(self, call)

    async def step(self, action: Action) -> StepResult:
        try:
            with self._timed():
                result = await self.run_tools(action) if action.calls else await self._submitted()
        except (SandboxKilledError, BaseExceptionGroup) as exc:
            return self._ended(exc)
        if not result.done and time.monotonic() - self.began > (self.problem.agent_s or float("inf")):
            return StepResult(result.observation, done=True, info={"out_of_time": True})
        return result

    @tool(timeout=_TOOL_S, parallel=False)
    async def bash(self, command: str) -> str | ToolResult:
        """Run a bash command in the sandbox. The working directory and exported variables are kept for the next one.

        Args:
            command: The command; it gets no input.
        """
        said = await self.at.bash(command)
        if self.config.tools == "bash" and said.split("\n", 1)[0].strip() == _SUBMIT:
            return await self.submit()
        return said

    @tool(timeout=_TOOL_S, parallel=False)
    async def read(self, path: str, first: int = 1, last: int | None = None) -> str:
        """Show lines of a text file, with their numbers.

        Args:
            path: The file.
            first: Number of the first line to show.
            last: Number of the last line to show; without it, as many as fit.
        """
        return await self.at.read(path, first, last)

    @tool(timeout=_TOOL_S, parallel=False)
    async def edit(self, path: str, old: str, new: str) -> str:
        """Replace text in a file. `old` must occur exactly once, with all its spaces. An empty `old` makes a new file.

        Args:
            path: The file.
            old: The text to replace, without line numbers.
            new: The text to put there.
        """
        return await self.at.edit(path, old, new)

    @tool(timeout=_TOOL_S, parallel=False)
    async def search(self, pattern: str, path: str = ".", files: str = "*") -> str:
        """Find lines in files by a regular expression (as grep -E takes it).

        Args:
            pattern: The regular expression.
            path: The file, or the folder with all that lies below it.
            files: Names of the files to look at, such as *.py.
        """
        return await self.at.search(pattern, path, files)

    @tool(timeout=_TOOL_S, parallel=False)
    async def submit(self) -> ToolResult:
        """Hand in the work as it is now. Call it once, when everything is done."""
        result = await self._submitted()
        return ToolResult(result.observation or "Submitted.", done=result.done)

    async def score(self, trajectory: Trajectory) -> Reward:
        """The total of the steps' scores, and the share of tests that passed."""
        if "sandbox_killed" in trajectory.info:
            return Reward(0.0)
        if len(self.grades) <= self.at_step and not self.over:
            try:
                with self._timed():
                    self.grades.append(await self._grade())
            except SandboxKilledError as exc:
                trajectory.info["sandbox_killed"] = str(exc)
                return Reward(0.0)
        trajectory.info["sandbox_s"] = round(self.sandbox_s, 3)
        trajectory.info["grading"] = "\n".join(made.log for made in self.grades)[-_LOG:]
        return total(self.problem, self.grades, partial=self.config.partial)

    async def snapshot(self) -> tuple[Snapshot, ShellState, list[Grade], float]:
        """Files, working directory and environment; no processes."""
        return await self.box.snapshot(), self.shell.state, self.grades, time.monotonic() - self.began

    async def restore(self, state: tuple[Snapshot, ShellState, list[Grade], float]) -> None:
        await self._load()
        files, shell, grades, spent = state
        self.box = await self.enter(self.shared.acquire(self.spec, restore=files))
        self._begin(shell, grades)
        self.began -= spent

    async def _load(self) -> None:
        self.problem: Problem = await self.call(load_problem, self.task)
        changes = dict(self.problem.spec) | ({"image": self.problem.image} if self.problem.image else {})
        self.spec = SandboxSpec.model_validate({**self.config.spec.model_dump(), **changes})

    def _begin(self, state: ShellState, grades: list[Grade]) -> None:
        self.shell = Shell(self.box, state)
        self.at = Tools(self.box, self.shell, self.config.command_s, self.config.output)
        self.grades = grades
        self.began, self.sandbox_s = time.monotonic(), 0.0

    @contextmanager
    def _timed(self) -> Iterator[None]:
        """Count the seconds that this episode spends on its sandboxes."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.sandbox_s += time.monotonic() - began

    @property
    def at_step(self) -> int:
        """The index of the step that the agent works on."""
        return min(len(self.grades), len(self.problem.steps) - 1)

    @property
    def over(self) -> bool:
        """A step was not good enough for the next, or all are graded."""
        graded = zip(self.problem.steps, self.grades, strict=False)
        failed = any(step.min_score is not None and made.score < step.min_score for step, made in graded)
        return failed or len(self.grades) == len(self.problem.steps)

    async def _submitted(self) -> StepResult:
        """The work on a step is done: the next step begins, or the episode ends. The last step is graded by `score`."""
        if len(self.grades) == len(self.problem.steps) - 1:
            return StepResult(done=True)
        self.grades.append(await self._grade())
        if self.over:
            return StepResult(done=True)
        following = self.problem.steps[self.at_step]
        await prepare(self.box, following)
        return StepResult(following.instruction)

    async def _grade(self) -> Grade:
        clean = {"task": None, "clean": True, "same": False}[self.config.grading]
        steps = self.problem.steps[: len(self.grades) + 1]
        return await grade(self.box, steps, pool=self.shared, spec=self.spec, clean=clean)

    def _ended(self, exc: BaseException) -> StepResult:
        """The answer to commands that ended the sandbox. Any other error is raised."""
        killed: Any = next((one for one in leaves(exc) if isinstance(one, SandboxKilledError)), None)
        if killed is None:
            raise exc
        return StepResult(done=True, info={"sandbox_killed": str(killed)})
