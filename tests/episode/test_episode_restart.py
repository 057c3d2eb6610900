"""Aborted episodes that cannot be parked, or cannot come back: the Env is closed, and the reason is said."""

from __future__ import annotations

import asyncio
import pickle

import pytest

from agentrl import ConfigError, EnvFactory, InfraError, Limits, StepResult, StopReason, run_episode, tool
from agentrl.episode.options import EpisodeHooks
from agentrl.errors import ResumeError
from tests.episode.resuming import ENVS, SCRIPT, TASK, Engine, Host, Replayed, Saved, Sum, closed, picture


@pytest.fixture(autouse=True)
def _nothing_happened_yet():
    closed.clear()


# What cannot be parked


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (InfraError("no room"), "InfraError: no room"),
        (KeyError("total"), "KeyError: 'total'"),
        (None, "TimeoutError: Broken.snapshot took longer than 0.05 s"),
    ],
)
async def test_a_snapshot_that_fails_closes_the_env_and_is_said_once(renderer, caplog, error, said):
    class Broken(Saved):
        async def snapshot(self):
            if error is None:
                await asyncio.sleep(60)
            raise error

    for _ in range(2):
        host = Host(Broken, Engine(SCRIPT, renderer), renderer, at=frozenset({4}), limits=Limits(step_s=0.05))
        t = await host.play()
        assert (t.stop, t.info["not_parked"], host.parked, t.failure) == (StopReason.ABORTED, said, [], None)
    assert len(closed) == 2
    assert caplog.text.count("cannot be kept") == 1


async def test_a_parking_that_refuses(renderer):
    async def park(parked):
        raise OSError(28, "No space left on device")

    t = await run_episode(
        Sum(),
        TASK,
        engine=Engine(["x"], renderer),
        renderer=renderer,
        hooks=EpisodeHooks(aborted=iter([False, True]).__next__, park=park),
    )
    assert t.info["not_parked"] == "OSError: [Errno 28] No space left on device"
    assert len(closed) == 1, "an Env that nobody took is closed"


@pytest.mark.parametrize("env", ENVS)
async def test_cancelled_while_it_is_parked(renderer, env):
    async def park(parked):
        await asyncio.sleep(60)

    aborted = iter([False, True]).__next__
    playing = asyncio.create_task(
        run_episode(
            env(),
            TASK,
            engine=Engine(["x"], renderer),
            renderer=renderer,
            hooks=EpisodeHooks(aborted=aborted, park=park),
        )
    )
    await asyncio.sleep(0.1)
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    assert len(closed) == 1


def test_a_snapshot_needs_a_restore():
    class Half(Sum):
        def snapshot(self):
            return 0

    with pytest.raises(ConfigError, match="Half writes one of snapshot and restore without the other; write both"):
        EnvFactory(Half)


# What cannot come back


@pytest.mark.parametrize("error", [InfraError("gone"), KeyError("total"), ConfigError("x"), None])
async def test_a_restore_that_fails(renderer, error):
    class Broken(Saved):
        async def restore(self, state):
            if error is None:
                await asyncio.sleep(60)
            raise error

    host = Host(Broken, Engine(SCRIPT, renderer), renderer, at=frozenset({6}), limits=Limits(reset_s=0.05))
    await host.play()
    said = "TimeoutError: Broken.restore took longer" if error is None else f"{type(error).__name__}: {error}"
    with pytest.raises(ResumeError, match=f"snapshot: {said}"):
        await host.resume()
    assert len(closed) == 2


class Fickle(Replayed):
    """Says that it is deterministic, and is not."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.answer = f"#{len(closed)}"


class FickleAnswer(Fickle):
    @tool
    async def add(self, n: int) -> str:
        """Add a number."""
        return self.answer


class FickleReset(Fickle):
    def reset(self, task):
        return self.answer


class FickleEnd(Fickle):
    async def step(self, action):
        return StepResult(done=True) if closed else StepResult("go on")


class FickleWorld(Fickle):
    async def reset(self, task):
        if closed:
            raise InfraError("down")
        return await super().reset(task)


@pytest.mark.parametrize(
    ("env", "said"),
    [
        (FickleAnswer, "the environment diverged: it answered turn 1"),
        (FickleEnd, "the environment diverged: it answered turn 1"),
        (FickleReset, "the environment diverged: its observation differs"),
        (FickleWorld, "InfraError: down"),
    ],
)
async def test_a_replay_that_diverges(renderer, env, said):
    host = Host(env, Engine(SCRIPT, renderer), renderer, at=frozenset({2 if env is FickleReset else 6}))
    t = await host.play()
    before = list(t.tokens)
    with pytest.raises(ResumeError, match=f"replay: {said}"):
        await host.resume()
    assert (len(closed), t.tokens) == (2, before)


@pytest.mark.parametrize("env", [Saved, Replayed])
@pytest.mark.parametrize("again", [1, 2])
async def test_aborted_again_before_it_is_back(renderer, env, again):
    expected = await Host(env, Engine(SCRIPT, renderer), renderer).to_the_end()
    host = Host(env, Engine(SCRIPT, renderer), renderer, at=frozenset({6}))
    await host.play()
    before = pickle.loads(pickle.dumps(host.parked[0]))
    host.at = frozenset({host.polls + again})
    assert (await host.resume()).stop is StopReason.ABORTED
    again, first = host.parked[1], before
    assert (again.episode.steps, again.episode.next, again.saved) == (
        first.episode.steps,
        first.episode.next,
        first.saved,
    )
    assert picture(await host.resume()) == picture(expected)
    assert len(closed) == 4


@pytest.mark.parametrize("env", ENVS)
async def test_cancelled_on_the_way_back_and_behind_it(renderer, env):
    class Slow(env):
        async def step(self, action):
            if closed or self.total == 1:
                await asyncio.sleep(60)
            return await super().step(action)

    host = Host(Slow, Engine(SCRIPT, renderer), renderer, at=frozenset({4}))
    await host.play()
    resuming = asyncio.create_task(host.resume())
    await asyncio.sleep(0.1)
    resuming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await resuming
    assert len(closed) == (1 if env is Sum else 2)
