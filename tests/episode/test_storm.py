"""Hundreds of Envs that open, fail, hang and are cancelled at random: nothing of them is left."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sqlite3
import threading
from contextlib import asynccontextmanager
from random import Random

import anyio
import pytest

from agentrl import Env, EnvFactory, InfraError, Limits, StepResult, StopReason, Task, Trajectory, run_episode, tool
from agentrl.engine import ScriptedEngine
from agentrl.episode.options import EpisodeOptions
from agentrl.testing import call

EPISODES = 300
OPEN: set[int] = set()
"""Resources that were opened and not closed."""


@asynccontextmanager
async def resource(rng: Random):
    """One with a task group, that may fail or hang on its way in, inside or on its way out."""
    number = rng.getrandbits(60)
    await asyncio.sleep(rng.choice([0, 0, 0.002]))
    if rng.random() < 0.1:
        raise InfraError("does not open")
    async with anyio.create_task_group() as group:
        group.start_soon(dies if rng.random() < 0.1 else anyio.sleep, 3600)
        OPEN.add(number)
        try:
            yield group
        finally:
            OPEN.discard(number)
            group.cancel_scope.cancel()
        if rng.random() < 0.1:
            raise RuntimeError("does not close")
    if rng.random() < 0.05:
        await asyncio.sleep(3600)


async def dies(seconds: float) -> None:
    await asyncio.sleep(0.003)
    raise OSError("the server died")


class Wild(Env):
    """Takes what it does from `self.rng`."""

    async def reset(self, task):
        for _ in range(self.rng.randrange(3)):
            await self.enter(resource(self.rng))
        if self.rng.random() < 0.2:  # by hand, and never closed
            self.group = anyio.create_task_group()
            await self.group.__aenter__()
            self.group.start_soon(dies if self.rng.random() < 0.5 else anyio.sleep, 0.01)
        if self.rng.random() < 0.05:
            await asyncio.sleep(3600)
        return "Go"

    @tool
    async def opens(self) -> str:
        """Open another."""
        await self.enter(resource(self.rng))
        return "open"

    @tool
    def blocks(self) -> str:
        """Keep the thread."""
        self.db = sqlite3.connect(":memory:")
        threading.Event().wait(self.rng.choice([0, 0.005, 0.3]))
        return "done"

    async def step(self, action):
        if self.rng.random() < 0.1:
            raise KeyError("a bug")
        if self.rng.random() < 0.05:
            asyncio.current_task().cancel()
        await asyncio.sleep(0)
        return await self.run_tools(action)

    def score(self, trajectory):
        return 1.0

    async def close(self):
        how = self.rng.random()
        if how < 0.1:
            raise RuntimeError("close broke")
        if how < 0.15:
            await asyncio.sleep(3600)


class WildThread(Wild):
    def step(self, action):
        return StepResult("again") if self.rng.random() < 0.5 else StepResult(done=True)

    def close(self):
        with contextlib.suppress(AttributeError):
            self.db.close()


TURNS = [
    {**call("opens"), "tool_calls": [*call("opens")["tool_calls"], *call("blocks")["tool_calls"]]},
    call("blocks"),
    "Done.",
]
LIMITS = Limits(reset_s=2.0, step_s=1.0, tool_s=0.1, score_s=1.0, close_s=0.15, turns=3)
"""All episodes begin at once, and on a busy machine each must still get its first share of a processor in time."""


@pytest.mark.thorough
async def test_a_storm_leaves_nothing(renderer):
    threads, chance = threading.active_count(), Random(7)
    async with EnvFactory(Wild) as wild, EnvFactory(WildThread) as wild_thread:

        async def episode(number: int) -> Trajectory:
            return await run_episode(
                chance.choice([wild, wild_thread]).make(),
                Task(prompt="Go", seed=number),
                engine=ScriptedEngine(TURNS, renderer, seconds=0.001),
                renderer=renderer,
                options=EpisodeOptions(limits=LIMITS),
            )

        async def cancelled(task: asyncio.Task[Trajectory]) -> None:
            await asyncio.sleep(chance.uniform(0, 1.5))
            task.cancel()

        tasks = [asyncio.create_task(episode(number)) for number in range(EPISODES)]
        cancels = [asyncio.create_task(cancelled(task)) for task in chance.sample(tasks, EPISODES // 3)]
        _, pending = await asyncio.wait(tasks, timeout=60)
        assert not pending, "an episode hangs"
        await asyncio.wait(cancels)
    ended = [task.result() for task in tasks if not task.cancelled()]
    assert EPISODES // 2 < len(ended) < EPISODES, "some were cancelled, and nobody else"
    assert {t.stop for t in ended} >= {StopReason.DONE, StopReason.FAILED}
    assert all(t.failure is not None for t in ended if t.stop is StopReason.FAILED), "each with its cause"
    assert sum("close_error" in t.info for t in ended) > EPISODES // 20
    await nothing_left(threads)
    assert set() == OPEN


async def nothing_left(threads: int) -> None:
    async with asyncio.timeout(20):
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others)
        while threading.active_count() > threads:  # noqa: ASYNC110 - a thread says nothing to a loop
            await asyncio.sleep(0.02)
    gc.collect()
