"""New weights in the middle of turns: requests are cut at the update, and each token keeps the version that made it."""

from __future__ import annotations

import asyncio

import pytest

from agentrl import Env, EnvFactory, StepResult, Task
from agentrl.engine.pausable import PausableEngine
from agentrl.episode.options import EpisodeHooks
from agentrl.episode.run import run_episode
from tests.engine.trained import Trained


class One(Env):
    async def step(self, action):
        return StepResult(done=True)

    async def score(self, trajectory):
        return 1.0


def ids(renderer):
    return renderer.prompt([{"role": "user", "content": "Hi"}]).tokens


async def play(engine, renderer, name):
    async with EnvFactory(One) as envs:
        return await run_episode(
            envs.make(), Task(prompt="Hi"), engine=engine, renderer=renderer, session_id=name,
            hooks=EpisodeHooks(aborted=lambda: False),
        )  # fmt: skip


async def test_a_turn_goes_on_over_an_update(renderer):
    text = "one two three four five six seven eight nine ten"
    inner = Trained([text], renderer)
    inner.half, engine = True, PausableEngine(inner)
    playing = [asyncio.create_task(play(engine, renderer, f"e{i}")) for i in range(5)]
    while engine.requests < 5:  # noqa: ASYNC110 - nothing tells when a request runs
        await asyncio.sleep(0)
    await engine.update(None, "1")
    found = await asyncio.gather(*playing)
    straight = await play(Trained([text], renderer), renderer, "straight")
    for trajectory in found:
        assert trajectory.tokens == straight.tokens
        assert len(trajectory.turns) == 1
        versions = [span.weight_version for span in trajectory.segment.spans if span.kind == "sampled"]
        assert versions == ["0", "1"]
    assert engine.requests == 0


async def test_requests_wait_while_the_weights_change(renderer):
    engine = PausableEngine(Trained(lambda ids: "x", renderer))
    async with engine.paused():
        waiting = asyncio.create_task(engine.generate(ids(renderer), {}))
        await asyncio.sleep(0.01)
        assert engine.requests == 0
    assert (await waiting).finish_reason == "stop"


async def test_a_request_that_missed_the_abort_is_aborted_again(renderer, monkeypatch):
    monkeypatch.setattr("agentrl.engine.pausable._AGAIN_S", 0.01)
    inner = Trained(lambda ids: "some words", renderer, seconds=30.0)
    inner.deaf = 2
    engine = PausableEngine(inner)
    running = asyncio.create_task(engine.generate(ids(renderer), {}))
    await asyncio.sleep(0)
    await engine.update(None, "1")
    assert (await running).finish_reason == "abort"
    assert inner.deaf == -1


async def test_an_update_that_is_cancelled_lets_requests_through(renderer, monkeypatch):
    monkeypatch.setattr("agentrl.engine.pausable._AGAIN_S", 0.01)
    inner = Trained(lambda ids: "some words", renderer, seconds=0.1)
    inner.deaf = 10**6
    engine = PausableEngine(inner)
    running = asyncio.create_task(engine.generate(ids(renderer), {}))
    await asyncio.sleep(0)
    updating = asyncio.create_task(engine.update(None, "1"))
    await asyncio.sleep(0.02)
    updating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await updating
    assert (await running).finish_reason == "stop"
    assert (await engine.generate(ids(renderer), {})).weight_version == "0"
    assert engine.requests == 0


async def test_a_cancelled_request_is_not_counted(renderer):
    engine = PausableEngine(Trained(lambda ids: "x", renderer, seconds=30.0))
    running = asyncio.create_task(engine.generate(ids(renderer), {}))
    await asyncio.sleep(0.01)
    assert engine.requests == 1
    running.cancel()
    await asyncio.wait([running])
    assert engine.requests == 0
    await engine.update(None, "1")
