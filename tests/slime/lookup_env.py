"""The Env of these tests: it answers questions from a table, and breaks, hangs or dawdles when a task asks it to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pydantic import BaseModel

from agentrl import Env, InfraError, Reward, StepResult, Trajectory, tool
from tests.slime.event_log import EventLog, Gate

TABLE = {"France": "Paris", "Spain": "Madrid"}
EVENTS = EventLog("AGENTRL_TEST_EVENTS")
"""What happened to shared resources and Envs, in order."""
DOWN: list[str] = []
"""How often `share` is still to fail, and why."""
GATE = Gate("AGENTRL_TEST_GATE")
"""Hooks named by metadata["held_in"] wait until it is set."""
ERRORS = {"bug": KeyError, "world": InfraError, "cancel": asyncio.CancelledError}


class Lookup(Env):
    """metadata["break"] names the hook that breaks, metadata["how"] the way: one of ERRORS, or "hang".

    metadata["slow"] is the seconds that a tool takes, metadata["held_in"] names the hook that waits at the GATE. Of a
    task with metadata["odd"] only every second sample does any of that. metadata["number"] is the sample's.
    """

    config: dict[str, int]
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

    async def _visit(self, where: str) -> None:
        asked = self.task.metadata
        if asked.get("odd") and asked["number"] % 2 == 0:
            return
        while asked.get("held_in") == where and not GATE.is_set():  # noqa: ASYNC110 - a thread opens it
            await asyncio.sleep(0.01)
        if where == "tool":
            await asyncio.sleep(asked.get("slow", 0))
        if asked.get("break") != where:
            return
        if asked["how"] == "hang":
            await asyncio.sleep(3600)
        raise ERRORS[asked["how"]](f"{where} broke")

    async def reset(self, task):
        await self._visit("reset")
        return task.prompt

    @tool
    async def capital(self, country: str) -> str:
        """The capital of a country."""
        await self._visit("tool")
        return self.shared.get(country, "unknown")

    async def step(self, action):
        await self._visit("step")
        return await self.run_tools(action)

    async def score(self, trajectory: Trajectory) -> Reward:
        await self._visit("score")
        right = float(trajectory.answer == self.task.label)
        if self.task.metadata.get("reward") == "index":
            return Reward(float(self.task.metadata["number"]))
        if "reward" in self.task.metadata:
            return Reward(float(self.task.metadata["reward"]))
        return Reward(right, {"right": right, "turns": float(len(trajectory.turns))})

    async def close(self) -> None:
        EVENTS.append("close")
        await self._visit("close")


class Shareless(Lookup):
    @classmethod
    async def share(cls, config):
        raise InfraError("no table")


class Unscored(Lookup):
    def score(self, trajectory: Trajectory) -> None:
        return None


class Silent(Env):
    """No tools: any turn ends the episode."""

    async def step(self, action):
        return await self.run_tools(action)

    def score(self, trajectory: Trajectory) -> float:
        return 0.25


class Table(BaseModel, extra="forbid"):
    table: str


class Keyed(Silent):
    config: Table

    def score(self, trajectory: Trajectory) -> float:
        return float(self.config.table == "small")


class Size(BaseModel, extra="forbid"):
    size: int


class Tuned(Silent):
    config: Size

    def score(self, trajectory: Trajectory) -> float:
        return float(self.config.size)


class Quiz(Env):
    """Says no to every answer that is not the label; the reward is the sample's number."""

    async def step(self, action):
        return StepResult("No.", done=action.content == self.task.label)

    def score(self, trajectory: Trajectory) -> float:
        return float(self.task.metadata["number"])


def half(trajectory: Trajectory) -> float:
    """A reward function."""
    return 0.5


NOT_A_FUNCTION = 7
