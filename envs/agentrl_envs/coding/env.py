"""The environment: the model works in a sandbox by tools, and tests grade the changed files."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field

from agentrl import Action, StepResult, Task, ToolResult, tool
from agentrl.env.env import tools_of
from agentrl.env.tool_calls import exec_own_tool
from agentrl.errors import CallError, leaves
from agentrl.sandbox import SandboxKilledError, SandboxState
from agentrl.types import JSON, ToolCall, ToolSpec
from agentrl_envs.coding.graded import GradedConfig, GradedWork
from agentrl_envs.coding.problem import Grade
from agentrl_envs.coding.tools import Tools
from agentrl_envs.coding.work import prepare
from agentrl_sandbox.shell import Shell, ShellState

_TOOL_S = 270.0
"""Deadline of a tool: the command's own deadline, plus time to end the command and to grade a step."""
_LONGEST_COMMAND_S = 240.0
_SUBMIT = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""The first line of output that ends the work when `bash` is the only tool, as in mini-swe-agent."""


class CodingConfig(GradedConfig):
    tools: Literal["full", "bash"] = "full"
    """The tools of the model. full: bash, read, edit, search, submit. bash: only bash."""
    command_s: float = Field(60.0, gt=0, le=_LONGEST_COMMAND_S)
    """The time limit of a command that the model runs, in seconds."""
    output: int = Field(10_000, ge=100)
    """The most characters of a tool's result; a longer result is cut in the middle."""


class CodingEnv(GradedWork):
    """Solve a programming task in a sandbox. The reward comes from tests that run after the agent has finished.

    The model ends its work by `submit`, or by a turn without a tool call.
    """

    config: CodingConfig

    def tools(self) -> Sequence[ToolSpec]:
        specs = [tool.spec for name, tool in tools_of(self).items() if self.config.tools == "full" or name == "bash"]
        return [*specs, *self.task.tools]

    async def reset(self, task: Task) -> str:
        await self.load([])
        self.box = await self.enter(self.shared.acquire(self.spec))
        self._begin(ShellState())
        with self.timed():
            await prepare(self.box, self.problem.steps[0])
            if self.problem.activate:
                await self.shell.run(self.problem.activate)
        return self.problem.steps[0].instruction

    async def exec_tool(self, call: ToolCall) -> ToolResult | JSON:
        if self.config.tools == "bash" and call.name != "bash" and call.name in tools_of(self):
            raise CallError(f"there is no tool {call.name!r}; the tools are: bash")
        return await exec_own_tool(self, call)

    async def step(self, action: Action) -> StepResult:
        try:
            with self.timed():
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
        reply = await self.interface.bash(command)
        if self.config.tools == "bash" and reply.split("\n", 1)[0].strip() == _SUBMIT:
            return await self.submit()
        return reply

    @tool(timeout=_TOOL_S, parallel=False)
    async def read(self, path: str, first: int = 1, last: int | None = None) -> str:
        """Show lines of a text file, with their numbers.

        Args:
            path: The file.
            first: Number of the first line to show.
            last: Number of the last line to show; without it, as many as fit.
        """
        return await self.interface.read(path, first, last)

    @tool(timeout=_TOOL_S, parallel=False)
    async def edit(self, path: str, old: str, new: str) -> str:
        """Replace text in a file. `old` must occur exactly once, with all its spaces. An empty `old` makes a new file.

        Args:
            path: The file.
            old: The text to replace, without line numbers.
            new: The text to put there.
        """
        return await self.interface.edit(path, old, new)

    @tool(timeout=_TOOL_S, parallel=False)
    async def search(self, pattern: str, path: str = ".", files: str = "*") -> str:
        """Find lines in files by a regular expression (as grep -E takes it).

        Args:
            pattern: The regular expression.
            path: The file, or the folder with all that lies below it.
            files: Names of the files to look at, such as *.py.
        """
        return await self.interface.search(pattern, path, files)

    @tool(timeout=_TOOL_S, parallel=False)
    async def submit(self) -> ToolResult:
        """Hand in the work as it is now. Call it once, when everything is done."""
        result = await self._submitted()
        return ToolResult(result.observation or "Submitted.", done=result.done)

    async def snapshot(self) -> tuple[SandboxState, ShellState, list[Grade], float]:
        """The state of the sandbox: the running machine if the back end can store a machine, else the files; also the
        working directory and the environment variables of the shell."""
        return await self.shared.snapshot(self.box), self.shell.state, self.grades, time.monotonic() - self.began

    async def restore(self, state: tuple[SandboxState, ShellState, list[Grade], float]) -> None:
        box, shell, grades, spent = state
        await self.load(grades)
        self.box = await self.enter(self.shared.acquire(self.spec, restore=box))
        self._begin(shell)
        self.began -= spent

    def _begin(self, state: ShellState) -> None:
        self.shell = Shell(self.box, state)
        self.interface = Tools(self.box, self.shell, self.config.command_s, self.config.output)
        self.began = time.monotonic()

    async def _submitted(self) -> StepResult:
        """Finish the step: grade it and begin the next step, or end the episode. `score` grades the last step."""
        if len(self.grades) == len(self.problem.steps) - 1:
            return StepResult(done=True)
        await self.grade_step()
        if self.over:
            return StepResult(done=True)
        following = self.problem.steps[len(self.grades)]
        await prepare(self.box, following)
        return StepResult(following.instruction)

    def _ended(self, exc: BaseException) -> StepResult:
        """The end of the episode after a command that ended the sandbox. Raises any other error again."""
        killed: Any = next((leaf for leaf in leaves(exc) if isinstance(leaf, SandboxKilledError)), None)
        if killed is None:
            raise exc
        return StepResult(done=True, info={"sandbox_killed": str(killed)})
