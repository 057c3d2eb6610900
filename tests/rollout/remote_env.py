# ruff: noqa: ASYNC110, ASYNC240 - files and polls are how processes tell a test what they do
"""Envs that workers find by their path, and their script."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

from agentrl import AgentEnv, Env, InfraError, StepResult, tool
from tests.gateway.agents import ask


class Adder(Env):
    """Adds numbers by a tool. `share` notes the process."""

    config: dict[str, Any]

    @classmethod
    def share(cls, config):
        if config.get("folder"):
            with (Path(config["folder"]) / "shared").open("a") as file:
                file.write(f"{os.getpid()}\n")

    @tool
    def add(self, a: int, b: int) -> int:
        """Add two numbers.

        Args:
            a: one
            b: the other
        """
        return a + b

    async def score(self, trajectory):
        return float(str(self.task.label) in trajectory.answer)


class Unruly(Env):
    """Does what its task says."""

    async def step(self, action):
        name = self.task.metadata["does"]
        if name == "bug":
            return {}["zebra"]
        if name == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if name == "die once":
            mark = Path(self.task.metadata["mark"])
            if not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        if name == "wait":
            while not Path(self.task.metadata["mark"]).exists():
                await asyncio.sleep(0.01)
        return StepResult(done=True, reward=1.0)


class Asks(AgentEnv):
    """An agent that asks once, and returns where. It may end its worker once it has the answer."""

    async def run(self, task, endpoint):
        said = await ask(endpoint, [{"role": "user", "content": task.prompt}])
        mark = Path(task.metadata["mark"]) if "mark" in task.metadata else None
        if mark is not None and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return {"process": os.getpid(), "url": endpoint.url, "said": said["content"]}

    def score(self, trajectory):
        return float(self.result["said"] == "hello")


def script(ids):
    """A call of `add` until the prompt is long, then an answer."""
    if len(ids) < 100:
        return {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": len(ids) % 7}}}
            ],
        }
    return "the sum is 5"


class Walk(Env):
    """Three turns. It notes its process when it is opened and closed, and how many of it step at once."""

    config: dict[str, Any]
    stepping = 0

    def note(self, name, line=None):
        with (Path(self.config["folder"]) / name).open("a") as file:
            file.write(f"{os.getpid() if line is None else line}\n")

    async def reset(self, task):
        self.note("opened")
        self.turns = 0
        return task.prompt

    async def step(self, action):
        if self.task.label == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        type(self).stepping += 1
        self.note("stepping", type(self).stepping)
        try:
            await asyncio.sleep(self.config.get("step_s", 0.0))
        finally:  # an abort cancels steps
            type(self).stepping -= 1
        self.turns += 1
        return StepResult("Go on.", done=self.turns == 3)

    async def score(self, trajectory):
        if self.task.label == "broken":
            raise InfraError("the grader is gone")
        return float(trajectory.tokens[0] % 7)

    async def close(self):
        self.note("closed")
