"""The door to verl, against the interface of the real package: its agent loop and its output, on a scripted server."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from importlib.metadata import version
from types import SimpleNamespace

import pytest

from agentrl import ConfigError, EngineError, EpisodeOptions, Limits
from agentrl.errors import BugError
from agentrl.hosts.equality import differences
from agentrl.hosts.turned import HostedEnv
from agentrl.hosts.verl import VERSION, VerlEngine, agent_loop
from agentrl.testing import call
from tests.hosts.conftest import need
from tests.hosts.envs import Breaks, BreaksAtReset, Buggy, Masks, Slow, TwoTools, Weather
from tests.hosts.hosting import Policy

need("verl")

from tests.hosts.playing.verl import PROMPT, Servers, loop_of, play  # noqa: E402

LIMITS = {"turns": 6, "max_tokens_per_turn": 40}
RESPONSE = 160
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]


def test_the_version():
    assert version("verl") == VERSION, "the door is written for another version: read its source again"


@pytest.mark.parametrize("cls", [Weather, Masks, TwoTools, Breaks, BreaksAtReset])
async def test_each_output_is_the_episode(cls, renderer):
    cls.open, rewards = 0, []
    options = EpisodeOptions(limits=Limits(tokens=RESPONSE, **LIMITS))
    for seed, task in enumerate(HostedEnv(cls).tasks()[:16]):
        loop = loop_of(cls, Servers(Policy(renderer), seed), RESPONSE, limits=LIMITS)
        host = await play(loop, task)
        failed = cls in (Breaks, BreaksAtReset) and not any(host.rows[0].loss_mask)
        host = replace(host, reward=None) if failed else host
        named = await differences(host, cls(), renderer, options=options, context_length=PROMPT + RESPONSE)
        assert [str(difference) for difference in named] == []
        rewards.append(host.reward)
    assert (None in rewards) is (cls in (Breaks, BreaksAtReset))
    assert cls.open == 0


async def test_two_envs_in_one_worker(renderer):
    """The loops of a worker play at the same time, and each output is an episode of its own Env."""
    classes = (Weather, TwoTools) * 4
    loops = [loop_of(cls, Servers(Policy(renderer), n), RESPONSE, limits=LIMITS) for n, cls in enumerate(classes)]
    task = HostedEnv(Weather).tasks()[0]
    options = EpisodeOptions(limits=Limits(tokens=RESPONSE, **LIMITS))
    for cls, host in zip(classes, await asyncio.gather(*(play(loop, task) for loop in loops)), strict=True):
        named = await differences(host, cls(), renderer, options=options, context_length=PROMPT + RESPONSE)
        assert [str(difference) for difference in named] == []


async def test_a_cancelled_or_raising_loop_leaves_no_env_open(renderer):
    Slow.open, Slow.asked, Buggy.open = 0, asyncio.Event(), 0
    task = HostedEnv(Slow).tasks()[0]
    policy = Policy(renderer, lambda text, rng: call("lookup", place=task.metadata["place"]))
    running = asyncio.create_task(play(loop_of(Slow, Servers(policy, 0), RESPONSE, limits=LIMITS), task))
    await Slow.asked.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    with pytest.raises(BugError, match="KeyError"):
        await play(loop_of(Buggy, Servers(Policy(renderer), 0), RESPONSE, limits=LIMITS), task)
    assert (Slow.open, Buggy.open) == (0, 0)


async def test_what_cannot_work_is_said_at_once(renderer):
    with pytest.raises(ConfigError, match="leave out thinking: strip"):
        agent_loop(Weather, thinking="strip")
    with pytest.raises(ConfigError, match=r"leave out limits\.compact_at"):
        agent_loop(Weather, limits={"compact_at": 500})
    loop = loop_of(Weather, Servers(Policy(renderer), 0), RESPONSE, limits=LIMITS)
    with pytest.raises(ConfigError, match="write the column task_id"):
        await loop.run({"temperature": 0.5}, raw_prompt=[])
    loop.rollout_config.prompt_length = 10
    with pytest.raises(ConfigError, match=r"raise data\.max_prompt_length"):
        await loop.run({"temperature": 0.5}, task_id="train-1")

    async def broken(**request):
        raise ConnectionError("gone")

    engine = VerlEngine(SimpleNamespace(generate=broken), {}, 100)
    with pytest.raises(EngineError, match="verl's server: ConnectionError: gone"):
        await engine.generate([1], {"max_new_tokens": 5})
