"""Envs that do what no Env should: nothing of it may end slime's rollout."""

from __future__ import annotations

import asyncio

from agentrl import Env, Reward, StepResult, tool


async def cancelled() -> None:
    """Wait for a task that was cancelled, as a close hook does that ends its own."""
    task = asyncio.create_task(asyncio.sleep(100))
    task.cancel()
    await task


class Tame(Env):
    @tool
    async def lookup(self, city: str) -> str:
        """Look a city up."""
        return "large"

    def score(self, trajectory):
        return 1.0


class CloseCancels(Tame):
    async def close(self):
        await cancelled()


class ShareCancels(Tame):
    @classmethod
    async def share(cls, config):
        await cancelled()


class SnapshotCancels(Tame):
    async def snapshot(self):
        await cancelled()

    def restore(self, state):
        raise AssertionError("nothing was kept")


class RestoreCancels(Tame):
    def snapshot(self):
        return 1

    async def restore(self, state):
        await cancelled()


class OddPrompt(Tame):
    def reset(self, task):
        return [{"role": "critic", "content": "Hm."}]


class OddAnswer(Tame):
    async def step(self, action):
        return StepResult([{"role": "critic", "content": "Hm."}])


class NoNumber(Tame):
    def score(self, trajectory):
        return Reward(1.0, {"format": None})


class PartAsTotal(Tame):
    def score(self, trajectory):
        return Reward(1.5, {"score": 0.5, "bonus": 1.0})


class OwnWords(Tame):
    async def step(self, action):
        return StepResult(done=True, info={"tool_errors": 3, "observation_tokens_cut": "some"})
