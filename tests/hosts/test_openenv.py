"""The door to OpenEnv, proved by OpenEnv's own client over its WebSocket: the conversation and the reward are
agentrl's."""

from __future__ import annotations

import asyncio
import json
from importlib.metadata import version

import pytest

from agentrl import EpisodeOptions, Limits, run_episode
from agentrl.chat.client import ScriptedSpeaker
from agentrl.chat.engine import ChatEngine
from agentrl.hosts.openenv import VERSION
from agentrl.hosts.turned import HostedEnv
from tests.hosts.conftest import need
from tests.hosts.envs import Breaks, Buggy, TwoTools, Weather
from tests.hosts.hosting import spoken

need("openenv")

from tests.hosts.playing.openenv import Served, plain, play  # noqa: E402

LIMITS = {"turns": 6}
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]


def test_the_version():
    assert version("openenv") == VERSION, "the door is written for another version: read its source again"


async def test_each_episode_of_the_client_is_agentrls(renderer):
    """Of three Envs that are served in one process at the same time."""
    classes = (Weather, TwoTools, Breaks)
    await asyncio.gather(*(each_episode_is_agentrls(cls, renderer) for cls in classes))
    assert {cls.open for cls in classes} == {0}


async def each_episode_is_agentrls(cls, renderer):
    cls.open, rewards, options = 0, [], EpisodeOptions(limits=Limits(**LIMITS))
    tasks = HostedEnv(cls).tasks()[:12]
    with Served(cls, limits=LIMITS) as url:
        theirs = await asyncio.gather(*(play(url, task.id, spoken()) for task in tasks))
    for task, (messages, last) in zip(tasks, theirs, strict=True):
        engine = ChatEngine(ScriptedSpeaker(spoken()), renderer)
        ours = await run_episode(cls(), task, engine=engine, renderer=renderer, options=options)
        read = len(ours.messages) - ours.unread
        assert [plain(message) for message in messages] == [plain(message) for message in ours.messages[:read]]
        metadata = last.observation.get("metadata") or {}
        assert last.reward == (ours.reward if ours.is_valid else None)
        rewards.append(last.reward)
        assert metadata.get("stop") in (None, str(ours.stop))
    assert {0.0, 1.0} <= {*rewards}
    assert (None in rewards) is (cls is Breaks)


async def test_a_client_that_leaves_closes_its_env():
    from openenv.core.generic_client import GenericEnvClient

    Weather.open = 0
    with Served(Weather, limits=LIMITS) as url:
        async with GenericEnvClient(base_url=url) as client:
            await client.reset(seed=3)
            assert Weather.open == 1
    assert Weather.open == 0


async def test_a_client_that_is_killed_closes_its_env():
    from websockets.asyncio.client import connect

    Weather.open = 0
    with Served(Weather, limits=LIMITS) as url:
        socket = await connect(f"{url.replace('http', 'ws')}/ws")
        await socket.send(json.dumps({"type": "reset", "data": {"seed": 3}}))
        await socket.recv()
        assert Weather.open == 1
        socket.transport.abort()
        while Weather.open:  # noqa: ASYNC110 - the Env's end sets no event
            await asyncio.sleep(0.01)


async def test_errors_reach_the_client():
    from openenv.core.generic_client import GenericEnvClient

    Buggy.open = 0
    with Served(Buggy, limits=LIMITS) as url:
        async with GenericEnvClient(base_url=url) as client:
            with pytest.raises(Exception, match="there is no task 'none'"):
                await client.reset(task_id="none")
        async with GenericEnvClient(base_url=url) as client:
            await client.reset(seed=1)
            with pytest.raises(Exception, match="KeyError"):
                await client.step({"content": "sunny"})
    assert Buggy.open == 0
