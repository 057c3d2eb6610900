"""Envs whose tool has a side effect, one for each way back from an abort."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict

from agentrl import Env, InfraError, Trajectory, tool

ADDED: defaultdict[str, list[int]] = defaultdict(list)
"""The side effects: what was added, by the id of the task."""
BEGUN: set[str] = set()
"""Tasks whose tool has begun."""
SEEN: dict[str, dict] = {}
"""The metadata of a task, as `reset` was given it."""
OPEN: set[Env] = set()
"""Envs that were reset or restored and are not closed."""


class Adding(Env):
    """Declares nothing: it is kept alive. metadata["slow"] is the longest time of the tool in seconds."""

    async def reset(self, task):
        OPEN.add(self)
        SEEN[task.id] = dict(task.metadata)
        self.total = 0
        return task.prompt

    @tool
    async def add(self, n: int) -> str:
        """Add a number."""
        BEGUN.add(self.task.id)
        await asyncio.sleep(self.task.metadata.get("slow", 0) * self.rng.random())
        ADDED[self.task.id].append(n)
        self.total += n
        return f"The total is {self.total}."

    async def score(self, trajectory: Trajectory) -> float:
        return float(self.total == self.task.label)

    async def close(self) -> None:
        OPEN.discard(self)


class Saved(Adding):
    def snapshot(self):
        return self.total

    async def restore(self, state):
        OPEN.add(self)
        self.total = state


class Replayed(Adding):
    deterministic = True


class Fickle(Replayed):
    """Not as deterministic as it says."""

    @tool
    async def add(self, n: int) -> str:
        """Add a number."""
        total = await Adding.add(self, n)
        return f"{total} There were {len(ADDED[self.task.id])} calls."


class Locked(Saved):
    """Its state cannot be pickled."""

    def snapshot(self):
        return threading.Lock()


class Gone(Saved):
    """What it was restored from is gone."""

    async def restore(self, state):
        raise InfraError("the snapshot's machine is gone")
