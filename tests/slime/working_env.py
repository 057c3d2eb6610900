"""A coding Env in a sandbox of this machine. Its state is the sandbox's files and the shell."""

from __future__ import annotations

from agentrl import Env, Task, Trajectory, tool
from agentrl_sandbox import SandboxPool
from agentrl_sandbox.shell import Shell


class Working(Env):
    @classmethod
    def share(cls, config: None) -> SandboxPool:
        return SandboxPool("local", size=64, warm=0)

    async def reset(self, task: Task) -> str:
        self.shell = Shell(await self.enter(self.shared.acquire()))
        return task.prompt

    @tool(timeout=60, parallel=False)
    async def bash(self, command: str) -> str:
        """Run a command."""
        return (await self.shell.run(command, timeout=30, max_output=10_000)).stdout

    async def score(self, trajectory: Trajectory) -> float:
        lines = (await self.shell.box.read_file("work.txt")).split()
        return float(lines == [str(n) for n in range(1, self.task.label + 1)])

    async def snapshot(self) -> object:
        return await self.shell.box.snapshot(), self.shell.state

    async def restore(self, state: tuple) -> None:
        files, shell = state
        self.shell = Shell(await self.enter(self.shared.acquire(restore=files)), shell)
