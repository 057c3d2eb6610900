"""Groups of episodes over a SandboxPool that is smaller than they are many, graded from the same pool when it is full.

pytest -s tests/rollout/test_sandbox_pool.py        prints what the pool did
"""

from __future__ import annotations

import asyncio
import random
from itertools import chain

import pytest
import torch

from agentrl import Env, EnvFactory, EpisodeOptions, Limits, StepResult, Task, Trajectory, TurnOptions
from agentrl.engine import ScriptedEngine
from agentrl.engine.local import LocalEngine, lockstep
from agentrl.models import load_model
from agentrl.rollout.play.episodes import Rollout
from agentrl.rollout.play.groups import run_groups
from agentrl.testing import call
from agentrl_sandbox import SandboxPool
from tests.sandbox.yard import Yard

chance = random.Random()


class Boxed(Env):
    """Works in one sandbox, and is graded in a second one while it still holds the first."""

    turn_options = TurnOptions(stop=tuple("aeiou"))
    shared: SandboxPool

    @classmethod
    def share(cls, config):
        return SandboxPool(Yard(slow=0.004), size=2, grade=1)

    async def reset(self, task):
        self.box = await self.enter(self.shared.acquire())
        return task.prompt

    async def step(self, action):
        await asyncio.sleep(chance.random() * 0.01)
        return StepResult("go on")

    async def score(self, trajectory: Trajectory) -> float:
        async with self.shared.acquire(lane="grade") as clean:
            await asyncio.sleep(chance.random() * 0.01)
            return float(clean is not self.box)


LIMITS = Limits(turns=2, max_tokens_per_turn=6, reset_s=0.5, score_s=0.5)
"""Most episodes wait longer than that for a sandbox; it does not count."""


async def play(env, engine, renderer, *, limits=LIMITS, episodes=16):
    async with EnvFactory(env) as envs, asyncio.timeout(60):
        rollout = Rollout(envs=envs, engine=engine, renderer=renderer, options=EpisodeOptions(limits=limits))
        groups = await run_groups(rollout, [Task(prompt=f"say {i}", id=str(i)) for i in range(episodes // 4)], 4)
        await asyncio.sleep(0)
        figures, yard = envs.shared.figures(), envs.shared._chosen_backend
    assert not yard.open, "nothing is left"
    assert yard.most <= 3
    assert figures.handed_out == 2 * episodes
    played = list(chain(*groups))
    assert all(t.is_valid and t.reward == 1.0 and not t.session_id.endswith("-again") for t in played)
    print(f"\n{episodes} episodes at once over 2 + 1 sandboxes: {figures}")
    return played, figures


@pytest.mark.thorough
async def test_in_lockstep_with_the_embedded_engine_and_alike_whatever_the_timing(tokenizer, renderer, monkeypatch):
    """The engine's waves hold episodes up until all have had their turn, those without a sandbox excepted."""
    torch.set_num_threads(1)
    monkeypatch.setattr(lockstep, "QUIET_S", 0.2)
    seen = []
    for seed in (1, 2):
        chance.seed(seed)
        engine = LocalEngine(load_model("tiny", seed=1), tokenizer)
        try:
            played, _ = await play(Boxed, engine, renderer, episodes=8)
        finally:
            await engine.close()
        seen.append([(t.tokens, t.log_probs) for t in played])
    assert seen[0] == seen[1]


class Worked(Boxed):
    async def step(self, action):
        if action.calls:
            await asyncio.sleep(0.1)
        return StepResult("go on", done=not action.calls)


@pytest.mark.thorough
async def test_with_episodes_that_go_their_own_way(renderer):
    engine = ScriptedEngine([call("work"), "Done."], renderer)
    limits = Limits(reset_s=0.3, score_s=0.3)
    _, figures = await play(Worked, engine, renderer, limits=limits)
    assert figures.wait.longest > 0.3, "longer than reset_s"


class Hoarding(Worked):
    """Takes a second sandbox of the same lane while it holds the first: what the guide warns of."""

    @classmethod
    def share(cls, config):
        return SandboxPool(Yard(), size=2, grade=1, wait_s=0.2)

    async def score(self, trajectory):
        async with self.shared.acquire():
            return 1.0


async def test_hold_and_wait_within_a_lane_is_said_and_gets_out_of_the_way(renderer, caplog):
    engine = ScriptedEngine([call("work"), "Done."], renderer)
    async with EnvFactory(Hoarding) as envs, asyncio.timeout(30):
        await run_groups(Rollout(envs=envs, engine=engine, renderer=renderer), [Task(prompt="x")], 2)
    assert "SandboxError: no sandbox became free for 0.2 s: 2 of the 2 for lane 'episode' are in use" in caplog.text


@pytest.fixture(autouse=True)
def _threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
