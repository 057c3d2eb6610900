"""Bounds and deadlines of the phases of an episode: how many at once, how long, and what is said of the stuck ones."""

from __future__ import annotations

import asyncio
import logging

import pytest

from agentrl import Env, EnvFactory, Limits, StepResult, StopReason, Task
from agentrl.engine import ScriptedEngine
from agentrl.engine.pausable import PausableEngine
from agentrl.episode.options import EpisodeHooks, EpisodeOptions
from agentrl.episode.phases import PhaseSlots
from agentrl.episode.run import run_episode
from tests.engine.trained import Trained


class Counting(Env):
    """Counts how many of it are in a phase at once."""

    now: dict[str, int]
    most: dict[str, int]

    async def _in(self, phase):
        self.now[phase] = self.now.get(phase, 0) + 1
        self.most[phase] = max(self.most.get(phase, 0), self.now[phase])
        await asyncio.sleep(0.01)
        self.now[phase] -= 1

    async def reset(self, task):
        await self._in("reset")
        return task.prompt

    async def step(self, action):
        await self._in("step")
        return StepResult(done=True)

    async def score(self, trajectory):
        await self._in("score")
        return 1.0


class Stuck(Env):
    async def step(self, action):
        await asyncio.sleep(60)


async def play(renderer, env=Counting, *, engine=None, hooks=None, name="e", **limits):
    async with EnvFactory(env) as envs:
        return await run_episode(
            envs.make(),
            Task(prompt="Hi"),
            engine=engine or ScriptedEngine(["yes"], renderer),
            renderer=renderer,
            options=EpisodeOptions(limits=Limits(**limits)),
            session_id=name,
            hooks=hooks,
        )


@pytest.mark.parametrize("phase", ["reset", "step", "score"])
async def test_a_phase_has_slots(renderer, phase):
    for slots, most in ((PhaseSlots({phase: 2}), 2), (PhaseSlots({}), 12), (None, 12)):
        Counting.now, Counting.most = {}, {}
        hooks = EpisodeHooks(slots=slots)
        found = await asyncio.gather(*[play(renderer, hooks=hooks, **{f"{phase}_s": 1.0}) for _ in range(12)])
        assert {trajectory.stop for trajectory in found} == {StopReason.DONE}
        assert Counting.most[phase] <= most
        assert most == 2 or Counting.most[phase] > 2


@pytest.mark.thorough
async def test_waiting_for_a_slot_is_not_counted(renderer):
    Counting.now, Counting.most = {}, {}
    hooks = EpisodeHooks(slots=PhaseSlots({"step": 1}))
    found = await asyncio.gather(*[play(renderer, hooks=hooks, step_s=0.5) for _ in range(80)])
    assert {trajectory.stop for trajectory in found} == {StopReason.DONE}


@pytest.mark.thorough
async def test_waiting_for_new_weights_is_not_counted(renderer):
    Counting.now, Counting.most = {}, {}
    engine = PausableEngine(Trained(["yes"], renderer))
    async with engine.paused():
        playing = asyncio.create_task(play(renderer, engine=engine, generate_s=0.8))
        await asyncio.sleep(1.2)
    assert (await playing).stop is StopReason.DONE


async def test_a_request_has_a_deadline(renderer, caplog):
    engine = ScriptedEngine(["yes"], renderer, seconds=60.0)
    with caplog.at_level(logging.WARNING, "agentrl"):
        trajectory = await play(renderer, engine=engine, generate_s=0.05, name="late")
    assert trajectory.stop is StopReason.FAILED
    assert (trajectory.failure.kind, trajectory.failure.boundary) == ("engine", "engine")
    assert "episode late failed in engine: " in caplog.text
    assert "limits.generate_s (0.05 s)" in caplog.text
    assert not engine.in_progress, "the request has ended"


@pytest.mark.parametrize(
    ("env", "seconds", "phase"), [(Counting, 60.0, "generate"), (Stuck, 0.0, "step")]
)  # fmt: skip
async def test_an_episode_whose_time_is_up_names_the_phase(renderer, caplog, env, seconds, phase):
    Counting.now, Counting.most = {}, {}
    engine = ScriptedEngine(["yes"], renderer, seconds=seconds)
    with caplog.at_level(logging.WARNING, "agentrl"):
        trajectory = await play(renderer, env, engine=engine, episode_s=0.8, name="late")
    assert trajectory.stop is StopReason.DEADLINE
    assert trajectory.info["deadline_in"] == phase
    assert f"episode late ended after 0.8 s in {phase}" in caplog.text
