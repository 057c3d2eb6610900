"""An episode of a shipped harness, with a scripted model, paused in the middle where a test wants it."""

from __future__ import annotations

import asyncio

from agentrl import AgentEnv, EpisodeOptions, Limits, StopReason, Task, Trajectory, resume_episode, run_episode
from agentrl.env.env import close_env
from agentrl.episode.options import EpisodeHooks
from tests.gateway.clients.playing import ScriptEngine, thinking_model
from tests.gateway.clients.said import Script

_OPTIONS = EpisodeOptions(limits=Limits(turns=100, episode_s=None, close_s=30.0))


async def episode(env: AgentEnv, task: Task, script: Script, *, pause_s: float = 0.0, at: int = 2) -> Trajectory:
    """Play it to its end. With `pause_s`, it is aborted when reply `at` is asked for, and waits so long."""
    engine, parked, aborted = ScriptEngine(script), [], asyncio.Event()

    async def park(kept):
        parked.append(kept)

    def slowly(number: int) -> float:
        if pause_s and number == at and not parked:
            aborted.set()
            return 0.5
        return 0.0

    engine.delay = slowly
    hooks = EpisodeHooks(aborted=aborted.is_set, park=park)
    given = {"engine": engine, "renderer": thinking_model()[1], "options": _OPTIONS, "hooks": hooks}
    try:
        done = await run_episode(env, task, **given)
        if pause_s:
            assert done.stop is StopReason.ABORTED, done.failure
            await asyncio.sleep(pause_s)
            aborted.clear()
            done = await resume_episode(parked[-1], env, **given)
    finally:
        await close_env(env)
    done.verify()
    return done
