"""Envs that wait for each other, played in lockstep: none waits for ever, and timing changes nothing."""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager

import pytest
import torch

from agentrl import Env, EnvFactory, EpisodeOptions, InfraError, Limits, StepResult, StopReason, Task, TurnOptions
from agentrl.engine.local import LocalEngine, lockstep
from agentrl.models import load_model
from agentrl.rollout.play.episodes import Rollout
from agentrl.rollout.play.groups import run_groups


class Pool:
    """Two boxes, given out in the order in which episodes came."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(2)
        self.most = self.used = 0

    @asynccontextmanager
    async def acquire(self):
        async with self._free:
            self.used += 1
            self.most = max(self.most, self.used)
            try:
                yield
            finally:
                self.used -= 1


class Boxed(Env):
    """Holds a box from reset to close, and takes a while that differs from run to run."""

    turn_options = TurnOptions(stop=tuple("aeiou"))
    jitter = random.Random()
    fails: set[str] = set()  # noqa: RUF012
    at_first_step = False

    @classmethod
    def share(cls, config):
        return Pool()

    async def reset(self, task):
        if not self.at_first_step:
            await self.enter(self.shared.acquire())
        await asyncio.sleep(self.jitter.random() * 0.01)
        return task.prompt

    async def step(self, action):
        if self.at_first_step and not hasattr(self, "box"):
            self.box = True
            await self.enter(self.shared.acquire())
        if self.task.id in self.fails:
            self.fails.discard(self.task.id)
            raise InfraError("the box is broken")
        await asyncio.sleep(self.jitter.random() * 0.01)
        return StepResult("go on", reward=0.5)


async def play(tokenizer, renderer, env=Boxed, seed=0, fails=()):
    torch.set_num_threads(1)
    engine = LocalEngine(load_model("tiny", seed=1), tokenizer)
    Boxed.jitter, Boxed.fails = random.Random(seed), set(fails)
    try:
        async with EnvFactory(env) as envs, asyncio.timeout(60):
            options = EpisodeOptions(limits=Limits(turns=2, max_tokens_per_turn=6))
            rollout = Rollout(envs=envs, engine=engine, renderer=renderer, options=options)
            tasks = [Task(prompt=f"say {i}", id=str(i)) for i in range(4)]
            groups = await run_groups(rollout, tasks, 2)
            assert envs.shared.most <= 2
            return [trajectory for group in groups for trajectory in group]
    finally:
        await engine.close()


@pytest.mark.thorough
async def test_a_pool_smaller_than_the_episodes_plays_them_all_alike_whatever_the_timing(
    tokenizer, renderer, monkeypatch
):
    monkeypatch.setattr(lockstep, "QUIET_S", 0.5)
    first, second = [await play(tokenizer, renderer, seed=seed) for seed in (1, 2)]
    assert all(t.is_valid and t.turns for t in first)
    assert [(t.tokens, t.log_probs) for t in first] == [(t.tokens, t.log_probs) for t in second]


async def test_one_that_is_played_again_gives_its_box_back_first(tokenizer, renderer, monkeypatch):
    monkeypatch.setattr(lockstep, "QUIET_S", 0.1)
    played = await play(tokenizer, renderer, fails={"0", "3"})
    assert all(t.is_valid for t in played)
    assert sum(t.session_id.endswith("-again") for t in played) == 2


async def test_boxes_that_are_taken_in_a_step_hold_up_nobody_for_ever(tokenizer, renderer, monkeypatch):
    class Late(Boxed):
        at_first_step = True

    monkeypatch.setattr(lockstep, "QUIET_S", 0.1)
    monkeypatch.setattr(lockstep, "STUCK_S", 0.2)
    played = await play(tokenizer, renderer, Late)
    assert {t.stop for t in played} <= {StopReason.MAX_TURNS, StopReason.TURN_MAX_TOKENS}


@pytest.mark.parametrize("asked", [0, 1])
def test_each_that_leaves_lets_one_in_and_that_one_is_waited_for(asked):
    changes = []
    wave = lockstep.Lockstep(3, lambda change: (changes.append(1), change()))
    assert not wave.is_complete(2)
    with wave.episode():
        if asked:
            wave.ask(lockstep.Future())
            assert not wave.is_complete(2)
            assert wave.is_complete(3)
            assert (wave.patience(1), wave.patience(0)) == (lockstep.QUIET_S, lockstep.STUCK_S)
            wave.go_on(1)
            assert wave.is_complete(1)
    assert (wave.alive, len(changes)) == (2, 1)
    assert wave.is_complete(1) == bool(asked), "one more may come now"
    assert wave.is_complete(2)
