"""The door to verifiers, proved in its own `run_episode`: the conversation, the turns and the reward are agentrl's."""

from __future__ import annotations

import sys
from importlib.metadata import version
from random import Random
from types import ModuleType

import pytest

from agentrl import EpisodeOptions, Limits
from agentrl.chat.client import ScriptedSpeaker
from agentrl.chat.engine import ChatEngine
from agentrl.episode.run import run_episode
from agentrl.hosts.turned import HostedEnv
from agentrl.hosts.verifiers import VERSION, environment
from agentrl.testing.chat_server import chat_server
from tests.hosts.conftest import need
from tests.hosts.envs import Breaks, Buggy, TwoTools, Weather
from tests.hosts.hosting import said

vf = need("verifiers")

LIMITS = {"turns": 6}
MODULE = "tests_hosts_weather_vf"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]


def test_the_version():
    assert version("verifiers") == VERSION, "the door is written for another version: read its source again"


def reply(messages, tools):
    text = "\n".join(message.get("content") or "" for message in messages)
    return said(text, Random(text))


async def episodes(cls, monkeypatch, count=12):
    """The episodes of verifiers: the tasks of the Env, and a model behind an OpenAI API."""
    from verifiers.v1.clients import ModelContext
    from verifiers.v1.configs.client import EvalClientConfig
    from verifiers.v1.envs.single_agent import SingleAgentEnv, SingleAgentEnvConfig

    module = ModuleType(MODULE)
    module.Taskset, module.Harness = environment(cls, limits=LIMITS)
    module.__all__ = ["Taskset", "Harness"]
    module.__spec__ = type(sys.__spec__)(MODULE, None)
    monkeypatch.setitem(sys.modules, MODULE, module)
    agent = {"harness": {"id": MODULE}, "runtime": {"type": "subprocess"}}
    env = SingleAgentEnv(SingleAgentEnvConfig.model_validate({"taskset": {"id": MODULE}, "agent": agent}))
    monkeypatch.setenv("PRIME_API_KEY", "none")
    with chat_server(reply) as server:
        context = ModelContext("scripted", EvalClientConfig(base_url=server.url))
        async with env.serving():
            return [(task, await env.run_episode(task, context)) for task in list(env.taskset)[:count]]


def plain(message):
    """A message in the words that both sides use."""
    message = message if isinstance(message, dict) else message.model_dump(exclude_none=True)
    calls = message.get("tool_calls") or ()
    names = [(call.get("function") or call)["name"] for call in calls]
    return message["role"], (message.get("content") or "").strip(), names


@pytest.mark.parametrize("cls", [Weather, TwoTools, Breaks])
async def test_each_episode_of_verifiers_is_agentrls(cls, renderer, monkeypatch):
    cls.open, rewards = 0, []
    tasks = HostedEnv(cls).by_id
    for task, episode in await episodes(cls, monkeypatch):
        (trace,) = episode.traces
        own = tasks[task.data.id]
        engine = ChatEngine(ScriptedSpeaker(reply), renderer)
        options = EpisodeOptions(limits=Limits(**LIMITS))
        ours = await run_episode(cls(), own, engine=engine, renderer=renderer, options=options)
        if ours.failure is not None:
            assert not trace.rewards.get("reward")
            assert ours.failure.error.partition(": ")[2] in str(trace.errors or episode.errors)
            rewards.append(None)
            continue
        assert not trace.errors, trace.errors
        assert trace.info["agentrl"] == {"reward": ours.reward, "stop": str(ours.stop)}
        read = len(ours.messages) - ours.unread
        assert [plain(message) for message in trace.messages] == [plain(message) for message in ours.messages[:read]]
        rewards.append(ours.reward)
    assert {0.0, 1.0} <= {*rewards}
    assert (None in rewards) is (cls is Breaks)
    assert cls.open == 0


async def test_a_bug_of_the_env_is_an_error_of_the_trace(monkeypatch):
    ((_, episode),) = await episodes(Buggy, monkeypatch, count=1)
    assert "KeyError" in str([trace.errors for trace in episode.traces] + [episode.errors])
