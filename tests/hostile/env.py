"""An Env that does what no Env should: `task.metadata["fault"]` names an entry of FAULTS, which says what."""

from __future__ import annotations

import asyncio
import itertools
import time
from contextlib import asynccontextmanager
from dataclasses import replace
from types import MethodType
from typing import Any

from agentrl import Env, StepResult, TurnOptions, tool
from tests.hostile.faults import FAULTS

LIMITS = {
    "turns": 4,
    "context": 900,
    "max_tokens_per_turn": 600,
    "reset_s": 2.0,
    "step_s": 2.5,
    "tool_s": 1.0,
    "score_s": 2.0,
    "close_s": 1.0,
    "episode_s": 15.0,
}
VOWELS = TurnOptions(stop=tuple("aeiou"))
"""Else a random model would never end its turn."""


class Shared:
    def __init__(self) -> None:
        self.number = itertools.count()
        self.open = 0
        self.tries: dict[str, int] = {}
        self.boxes = asyncio.Semaphore(3)

    @asynccontextmanager
    async def box(self):
        """One of a few; whoever comes late waits for it."""
        async with self.boxes, self.held():
            yield

    @asynccontextmanager
    async def held(self):
        """Known to be open."""
        self.open += 1
        try:
            yield
        finally:
            self.open -= 1


class Hostile(Env):
    config: dict

    @classmethod
    @asynccontextmanager
    async def share(cls, config):
        shared = Shared()
        yield shared
        assert shared.open == 0, f"{shared.open} resources were never closed"

    async def reset(self, task):
        self.fault = FAULTS[task.metadata["fault"]]
        self.alone = self.taken = 0
        hooks = dict(self.fault.hooks)
        if self.config.get("random"):
            self.turn_options = VOWELS
        for name in ("step", "score", "close", "last_turn", "tools"):
            if name in hooks:
                setattr(self, name, MethodType(hooks[name], self))
        if "reset" in hooks:
            first = hooks["reset"]
            return await (first(self, task) if asyncio.iscoroutinefunction(first) else self.call(first, self, task))
        return task.prompt

    async def step(self, action):
        self.taken += 1
        if self.config.get("random"):  # what is sampled means nothing
            result = StepResult("Go on.") if self.taken == 1 else StepResult(done=True)
        else:
            result = await self.run_tools(action)
        return replace(result, reward=self.own_reward()) if result.done else result

    def own_reward(self):
        """Differs within a group, so that there is something to learn."""
        return 0.5 + 0.5 * (next(self.shared.number) % 2)

    @tool
    async def look(self, at: Any = None) -> str:
        """Look at something."""
        return f"{at} looks back"

    @tool
    async def odd(self) -> Any:
        """Do what is odd."""
        return await self.call(self.fault.hooks["tool"], self)

    @tool(timeout=0.2)
    def slow(self, s: float) -> str:
        """Take that long in the thread."""
        time.sleep(s)
        return "slow is over"

    @tool(parallel=False)
    async def single(self) -> str:
        """Be alone."""
        self.alone += 1
        await asyncio.sleep(0.001)
        assert self.alone == 1, "not alone"
        self.alone -= 1
        return "was alone"
