"""An agent whose episode is aborted: it waits alive, its request held open, and is answered where it stopped."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from agentrl import EpisodeOptions, Limits, ResumeError, StopReason, Task, resume_episode, run_episode
from agentrl.engine import ScriptedEngine
from agentrl.env.env import close_env
from agentrl.episode.options import EpisodeHooks
from agentrl.episode.parking import Parking
from agentrl.testing import call, rollout
from tests.gateway.agents import Adder, RefusedByGateway, ask, doing

TASK = Task(prompt="Add up.", label=6)
SCRIPT = [{**call("add", n=n), "content": "The next number is added now."} for n in (1, 2, 3)] + ["All were added."]
USER = [{"role": "user", "content": "Hello."}]


class Rollouts:
    """Plays an episode in pieces, as a host with partial rollouts does."""

    def __init__(self, renderer, turns=SCRIPT, seconds=0.1, limits=None):
        self.engine = ScriptedEngine(turns, renderer, seconds=seconds)
        self.renderer, self.aborted, self.parked = renderer, False, None
        self.options = EpisodeOptions(limits=limits or Limits())

    async def _park(self, parked):
        self.parked = parked

    async def play(self, env, seconds=None, *, turns=0):
        """Play, or resume, until the end or an abort: after so many seconds, and not before that many turns began."""
        self.aborted, parked, self.parked = False, self.parked, None
        host = EpisodeHooks(aborted=lambda: self.aborted, park=self._park)
        given = {"engine": self.engine, "renderer": self.renderer, "options": self.options, "hooks": host}
        playing = resume_episode(parked, env, **given) if parked else run_episode(env, TASK, **given)
        task = asyncio.create_task(playing)
        if seconds is not None:
            await asyncio.wait([task], timeout=seconds)
            while turns and not task.done() and all(one.turns < turns for one in self.engine.positions.values()):  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            self.aborted = True
            while not task.done():
                await self.engine.abort()
                await asyncio.wait([task], timeout=0.01)
        return await task


@asynccontextmanager
async def closing(env):
    try:
        yield env
    finally:
        await close_env(env)


@pytest.mark.thorough
async def test_aborted_again_and_again_an_episode_has_each_token_once(renderer):
    plain = await rollout(Adder(), TASK, SCRIPT)
    host = Rollouts(renderer)
    aborts = in_a_turn = 0
    async with closing(Adder()) as env:
        while (played := await host.play(env, (0.06, 0.14)[aborts % 2])).stop is StopReason.ABORTED:
            aborts += 1
            in_a_turn += played.segment.open
            assert (played.reward, host.parked.how) == (None, "alive")
            before = played.tokens
            assert played.tokens == plain.tokens[: played.segment.length]
            await asyncio.sleep(0.12)
            assert played.tokens == before, "what waits samples nothing"
    assert aborts >= 4
    assert in_a_turn >= 2
    assert (played.tokens, played.loss_mask, played.log_probs) == (plain.tokens, plain.loss_mask, plain.log_probs)
    assert (played.reward, played.stop, played.ledger) == (1.0, StopReason.DONE, plain.ledger)
    assert len(played.turns) == 4
    played.verify()


async def test_tokens_that_the_host_masked_stay_masked(renderer):
    host = Rollouts(renderer)
    async with closing(Adder()) as env:
        played = await host.play(env, 0.15)
        played.mask("off_policy")
        before = played.ledger.sampled
        played = await host.play(env)
    assert before > 0
    assert played.ledger.masked == {"off_policy": before}
    assert played.ledger.trained == played.ledger.sampled - before > 0


async def test_a_mask_over_a_part_begins_anew(renderer):
    host = Rollouts(renderer)
    async with closing(Adder()) as env:
        played = await host.play(env, 0.0, turns=3)
        assert len(played.turns) > 1
        played.mask("host", turn=0)
        with pytest.raises(ResumeError, match="masked a part"):
            await host.play(env)


async def test_an_agent_that_has_not_asked_yet_waits_too(renderer):
    go = asyncio.Event()

    async def run(env, task, endpoint):
        await go.wait()
        return (await ask(endpoint, USER))["content"]

    host = Rollouts(renderer, ["Hi."])
    async with closing(doing(run)()) as env:
        assert (await host.play(env, 0.15)).stop is StopReason.ABORTED
        go.set()
        await asyncio.sleep(0.05)
        assert not host.engine.requests, "its request is held"
        played = await host.play(env)
    assert (played.reward, env.result) == (1.0, "Hi.")


@pytest.mark.thorough
async def test_after_park_s_the_client_is_told_to_come_later_and_the_agent_ends(renderer):
    told, ended = [], asyncio.Event()

    async def run(env, task, endpoint):
        try:
            await ask(endpoint, USER)
        except RefusedByGateway as exc:
            told.append(exc.status)
            await asyncio.Event().wait()
        finally:
            ended.set()

    host, parking = Rollouts(renderer, ["A long answer."], seconds=60), Parking()
    env = doing(run)()
    await host.play(env, 0.2)
    ticket = await parking.park(host.parked, 0.05)
    async with asyncio.timeout(5):
        await ended.wait()
    await parking.close()
    assert told == [503]
    with pytest.raises(ResumeError, match="its time was up"):
        await parking.take(ticket)


async def test_an_agent_that_did_not_survive_the_wait_begins_anew(renderer):
    async def run(env, task, endpoint):
        async with asyncio.timeout(0.3):  # its client's own patience
            await ask(endpoint, USER)

    host = Rollouts(renderer, ["A long answer."], seconds=60)
    async with closing(doing(run)()) as env:
        await host.play(env, 0.15)
        await asyncio.sleep(0.3)
        with pytest.raises(ResumeError, match="the agent ended while it waited: TimeoutError"):
            await host.play(env)


async def test_the_deadline_does_not_count_the_wait(renderer):
    host = Rollouts(renderer, seconds=0.02, limits=Limits(episode_s=0.6))
    async with closing(Adder()) as env:
        assert (await host.play(env, 0.05)).stop is StopReason.ABORTED
        await asyncio.sleep(0.7)
        assert (await host.play(env)).stop is StopReason.DONE
