"""Waiting in a queue does not count towards the deadline of the hook that waits."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from agentrl import Env, Limits, StopReason, Task, uncounted
from agentrl.testing import rollout


@asynccontextmanager
async def queue(seconds):
    with uncounted():
        await asyncio.sleep(seconds)
    yield


class Queued(Env):
    working_s = 0.0

    async def reset(self, task):
        await self.enter(queue(0.2))
        await asyncio.sleep(self.working_s)
        return task.prompt

    def score(self, trajectory):
        return 1.0


class Slow(Queued):
    working_s = 1.0


@pytest.mark.parametrize(("env", "stop"), [(Queued, StopReason.DONE), (Slow, StopReason.FAILED)])
async def test_only_the_work_of_a_hook_has_its_deadline(env, stop):
    played = await rollout(env(), Task(prompt="x"), ["done"], limits=Limits(reset_s=0.1))
    assert played.stop is stop


async def test_without_a_deadline_nothing_happens():
    with uncounted():
        pass
