"""The Env of these tests: it answers questions from a table, and breaks when a task asks it to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from agentrl import Env, InfraError, Reward, Trajectory, tool

TABLE = {"France": "Paris", "Spain": "Madrid"}
EVENTS: list[str] = []
"""What happened to shared resources and Envs, in order."""
DOWN: list[str] = []
"""How often `share` is still to fail, and why."""


class Lookup(Env):
    """metadata["break"] names the hook that raises, metadata["how"] the way."""

    shared: dict[str, str]

    @classmethod
    def share(cls, config):
        @asynccontextmanager
        async def table() -> AsyncIterator[dict[str, str]]:
            await asyncio.sleep(0.05)  # long enough for every first caller to be there
            if DOWN:
                raise InfraError(DOWN.pop())
            EVENTS.append("share")
            yield TABLE
            EVENTS.append("unshare")

        return table()

    def _break(self, where: str) -> None:
        if self.task.metadata.get("break") == where:
            raise {"bug": KeyError, "world": InfraError}[self.task.metadata["how"]](f"{where} broke")

    def reset(self, task):
        self._break("reset")
        return task.prompt

    @tool
    async def capital(self, country: str) -> str:
        """The capital of a country."""
        self._break("tool")
        await asyncio.sleep(self.task.metadata.get("slow", 0))
        return self.shared.get(country, "unknown")

    async def step(self, action):
        self._break("step")
        return await self.run_tools(action)

    def score(self, trajectory: Trajectory) -> Reward:
        self._break("score")
        right = float(trajectory.answer == self.task.label)
        if "reward" in self.task.metadata:
            return Reward(float(self.task.metadata["reward"]))
        return Reward(right, {"right": right, "turns": float(len(trajectory.turns))})

    def close(self) -> None:
        EVENTS.append("close")


class Unscored(Lookup):
    def score(self, trajectory: Trajectory) -> None:
        return None


class Silent(Env):
    """No tools: any turn ends the episode."""

    async def step(self, action):
        return await self.run_tools(action)

    def score(self, trajectory: Trajectory) -> float:
        return 0.25


def half(trajectory: Trajectory) -> float:
    """A reward function."""
    return 0.5


NOT_A_FUNCTION = 7
