"""The door to verifiers, proved in its own `run_episode`: the conversation, the turns and the reward are agentrl's."""

from __future__ import annotations

import asyncio
from importlib.metadata import version

import pytest

from agentrl import EpisodeOptions, Limits
from agentrl.chat.client import ScriptedSpeaker
from agentrl.chat.engine import ChatEngine
from agentrl.episode.run import run_episode
from agentrl.hosts.turned import HostedEnv
from agentrl.hosts.verifiers import VERSION
from agentrl.testing import call
from tests.hosts.conftest import need
from tests.hosts.envs import Breaks, Buggy, Slow, TwoTools, Weather
from tests.hosts.hosting import spoken

need("verifiers")

from tests.hosts.playing.verifiers import plain, play  # noqa: E402

LIMITS = {"turns": 6}
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]


def test_the_version():
    assert version("verifiers") == VERSION, "the door is written for another version: read its source again"


async def test_each_episode_of_verifiers_is_agentrls(renderer):
    """Of three Envs that play in one process at the same time."""
    classes = (Weather, TwoTools, Breaks)
    for cls in classes:
        cls.open = 0
    played = await asyncio.gather(*(play(cls, 12, spoken(), limits=LIMITS) for cls in classes))
    for cls, episodes in zip(classes, played, strict=True):
        await compare(cls, episodes, renderer)
        assert cls.open == 0


async def compare(cls, episodes, renderer):
    tasks, rewards = HostedEnv(cls).by_id, []
    for task, episode in episodes:
        (trace,) = episode.traces
        own = tasks[task.data.id]
        engine = ChatEngine(ScriptedSpeaker(spoken()), renderer)
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


async def test_a_bug_of_the_env_is_an_error_of_the_trace():
    Buggy.open = 0
    ((_, episode),) = await play(Buggy, 1, spoken(), limits=LIMITS)
    assert "KeyError" in str([trace.errors for trace in episode.traces] + [episode.errors])
    assert Buggy.open == 0


async def test_a_cancelled_run_leaves_no_env_open():
    Slow.open, Slow.asked = 0, asyncio.Event()
    running = asyncio.create_task(play(Slow, 1, lambda messages, tools: call("lookup", place="city"), limits=LIMITS))
    await Slow.asked.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert Slow.open == 0
