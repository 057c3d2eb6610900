"""The door to OpenEnv, proved by OpenEnv's own client over its WebSocket: the conversation and the reward are
agentrl's."""

from __future__ import annotations

import asyncio
import threading
import time
from importlib.metadata import version
from random import Random

import pytest

from agentrl import EpisodeOptions, Limits, run_episode
from agentrl.chat.client import ScriptedSpeaker
from agentrl.chat.engine import ChatEngine
from agentrl.hosts.openenv import VERSION, create_app
from agentrl.hosts.turned import HostedEnv
from tests.hosts.conftest import need
from tests.hosts.envs import Breaks, Buggy, TwoTools, Weather
from tests.hosts.hosting import said

need("openenv")

LIMITS = {"turns": 6}
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]


def test_the_version():
    assert version("openenv") == VERSION, "the door is written for another version: read its source again"


def reply(messages, tools):
    text = "\n".join(message.get("content") or "" for message in messages)
    return said(text, Random(text))


class Served:
    """A server in a thread."""

    def __init__(self, cls) -> None:
        import uvicorn

        config = uvicorn.Config(create_app(cls, limits=LIMITS), host="127.0.0.1", port=0, log_level="error")
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, daemon=True)

    def __enter__(self) -> str:
        self.thread.start()
        while not self.server.started:
            assert self.thread.is_alive()
            time.sleep(0.01)
        port = self.server.servers[0].sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{port}"

    def __exit__(self, *exc) -> None:
        self.server.should_exit = True
        self.thread.join()


async def episode(url, task_id):
    """An episode by OpenEnv's client. Returns the messages and the last result."""
    from openenv.core.generic_client import GenericEnvClient

    async with GenericEnvClient(base_url=url) as client:
        result, messages = await client.reset(task_id=task_id), []
        while not result.done:
            messages += result.observation["messages"]
            turn = reply(messages, result.observation["tools"])
            message = {"role": "assistant", "content": turn} if isinstance(turn, str) else turn
            messages.append(message)
            sent = {key: value for key, value in message.items() if key != "role"}
            result = await client.step(sent)
        return messages, result


def plain(message):
    names = [call["function"]["name"] for call in message.get("tool_calls") or ()]
    return message["role"], (message.get("content") or "").strip(), names


@pytest.mark.parametrize("cls", [Weather, TwoTools, Breaks])
async def test_each_episode_of_the_client_is_agentrls(cls, renderer):
    cls.open, rewards, options = 0, [], EpisodeOptions(limits=Limits(**LIMITS))
    tasks = HostedEnv(cls).tasks()[:12]
    with Served(cls) as url:
        theirs = await asyncio.gather(*(episode(url, task.id) for task in tasks))
    for task, (messages, last) in zip(tasks, theirs, strict=True):
        engine = ChatEngine(ScriptedSpeaker(reply), renderer)
        ours = await run_episode(cls(), task, engine=engine, renderer=renderer, options=options)
        read = len(ours.messages) - ours.unread
        assert [plain(message) for message in messages] == [plain(message) for message in ours.messages[:read]]
        metadata = last.observation.get("metadata") or {}
        assert last.reward == (ours.reward if ours.is_valid else None)
        rewards.append(last.reward)
        assert metadata.get("stop") in (None, str(ours.stop))
    assert {0.0, 1.0} <= {*rewards}
    assert (None in rewards) is (cls is Breaks)
    assert cls.open == 0


async def test_a_client_that_leaves_closes_its_env():
    from openenv.core.generic_client import GenericEnvClient

    Weather.open = 0
    with Served(Weather) as url:
        async with GenericEnvClient(base_url=url) as client:
            await client.reset(seed=3)
            assert Weather.open == 1
    assert Weather.open == 0


async def test_errors_reach_the_client():
    from openenv.core.generic_client import GenericEnvClient

    with Served(Buggy) as url:
        async with GenericEnvClient(base_url=url) as client:
            with pytest.raises(Exception, match="there is no task 'none'"):
                await client.reset(task_id="none")
        async with GenericEnvClient(base_url=url) as client:
            await client.reset(seed=1)
            with pytest.raises(Exception, match="KeyError"):
                await client.step({"content": "sunny"})
