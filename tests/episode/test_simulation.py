"""A simulated user in an Env: its talk, its bounds, its failures, and what an aborted episode keeps of it."""

from __future__ import annotations

import asyncio
import pickle
import re
from pathlib import Path

import pytest

from agentrl import Env, EnvFactory, InfraError, StepResult, StopReason, Task, run_episode
from agentrl.chat.client import ChatModel, ScriptedSpeaker, SpeakerConfig
from agentrl.chat.simulation import Judge, SimulatedUser, UserConfig, UserReply
from agentrl.engine import ScriptedEngine
from agentrl.testing import rollout
from agentrl.testing.chat_server import Answer, chat_server

CONFIG = UserConfig(speaker=SpeakerConfig(script="unused.py:say"), turns=3)
HASTY = UserConfig(speaker=SpeakerConfig(script="unused.py:say", seconds=0.01))


def lamp(messages, tools=()):
    """A customer who answers by the number of its turn."""
    assert "return your lamp" in messages[0]["content"]
    said = sum(message["role"] == "assistant" for message in messages)
    return ["I want to return my lamp.", "It is order 7.", "Thanks! ###STOP### and more"][said]


def user(say=lamp, config=CONFIG):
    return SimulatedUser(ScriptedSpeaker(say), "You want to return your lamp.", config)


async def test_the_user_talks_until_its_stop_mark():
    ada = user()

    assert await ada.hear("Hello!") == UserReply("I want to return my lamp.")
    assert await ada.hear("Which order?") == UserReply("It is order 7.")
    assert await ada.hear("Done.") == UserReply("Thanks!", "stop")
    assert [message["content"] for message in ada.messages[::2]] == ["Hello!", "Which order?", "Done."]
    assert ada.info() == {"user": {"turns": 3, "requests": 3}}


async def test_the_first_of_several_stop_marks_ends_the_talk():
    config = UserConfig(speaker=CONFIG.speaker, stop=("###STOP###", "###TRANSFER###"))
    ada = user(lambda messages, tools: "Bye. ###TRANSFER### ###STOP###", config)

    assert await ada.hear("Hello!") == UserReply("Bye.", "stop")


async def test_the_talk_is_bounded():
    ada = user(lambda messages, tools: "And another thing.", CONFIG.model_copy(update={"turns": 2}))

    assert not (await ada.hear("Hello!")).ended
    assert await ada.hear("Yes?") == UserReply("And another thing.", "turns")


async def test_a_user_goes_on_from_a_snapshot():
    ada, later = user(), user()
    await ada.hear("Hello!")
    later.restore(pickle.loads(pickle.dumps(ada.snapshot())))

    assert await later.hear("Which order?") == await ada.hear("Which order?") == UserReply("It is order 7.")
    assert later.messages == ada.messages
    assert later.info() == ada.info()


async def test_a_user_who_is_silent_or_slow_is_the_worlds_fault_and_heard_nothing():
    async def slow(messages, tools):
        await asyncio.Event().wait()

    for ada, reason in (
        (user(lambda messages, tools: " \n"), "the simulated user sent no message, 3 times"),
        (user(slow, HASTY), "did not answer within 0.01 s"),
    ):
        with pytest.raises(InfraError, match=reason):
            await ada.hear("Hello!")
        assert ada.messages == []


async def test_an_endpoint_plays_the_user_and_its_tokens_are_counted():
    with chat_server(lamp) as server:
        model = ChatModel(base_url=server.url, model="m", options={"temperature": 0})
        ada, bob = (SimulatedUser(model, "You want to return your lamp.", CONFIG) for _ in range(2))
        heard = await asyncio.gather(ada.hear("Hello!"), bob.hear("Hi!"))

    assert heard == [UserReply("I want to return my lamp.")] * 2
    assert server.requests[0]["temperature"] == 0
    assert ada.usage["requests"] == bob.usage["requests"] == 1
    assert ada.usage["prompt_tokens"] > 0


class Talk(Env):
    async def reset(self, task):
        self.user = user()
        return (await self.user.hear("Hello!")).text

    async def step(self, action):
        heard = await self.user.hear(action.content)
        return StepResult(heard.text, done=heard.ended, info=self.user.info())

    def score(self, trajectory):
        return 1.0


async def test_an_env_talks_with_its_user_and_keeps_what_that_took():
    t = await rollout(Talk(), Task(), ["Which order?", "Done."])

    assert [m["content"] for m in t.messages] == [
        "I want to return my lamp.", "Which order?", "It is order 7.", "Done.", "Thanks!",
    ]  # fmt: skip
    assert (t.reward, t.stop, t.info["user"]) == (1.0, StopReason.DONE, {"turns": 3, "requests": 3})


async def test_the_guides_env_is_played_as_it_stands(tmp_path):
    guide = (Path(__file__).parents[2] / "docs" / "environments.md").read_text(encoding="utf-8")
    (tmp_path / "support.py").write_text(re.search(r"```python\n(# support\.py\n.*?)```", guide, re.DOTALL)[1])
    (tmp_path / "users.py").write_text(re.search(r"```python\n(# users\.py\n.*?)```", guide, re.DOTALL)[1])
    config = {"user": {"speaker": {"script": f"{tmp_path}/users.py:ada"}, "turns": 20}}

    async with EnvFactory(f"{tmp_path}/support.py:Support", config) as envs:
        task = Task(metadata={"instruction": "You are Ada.", "order": 7})
        t = await rollout(envs.make(), task, ["Which order is it?", "Done."])

    said = [m["content"] for m in t.messages if m["role"] == "user"]
    assert said == ["I want to return my lamp.", "It is order 7.", "Thanks!"]
    assert t.info["user"] == {"turns": 3, "requests": 3}


async def test_an_endpoint_never_gets_the_facts():
    with chat_server(lambda messages, tools: str(sorted(messages[0]))) as server:
        model = ChatModel(base_url=server.url, model="m")
        heard = await SimulatedUser(model, "", CONFIG, facts={"secret": 1}).hear("Hello!")

    assert heard.text == "['content', 'role']"


class TalkTo(Talk):
    """Its user is the model behind `endpoint`."""

    endpoint: ChatModel

    async def reset(self, task):
        self.user = SimulatedUser(self.endpoint, "", CONFIG)
        return (await self.user.hear("Hello!")).text


async def test_an_endpoint_that_is_down_masks_the_episode(renderer):
    with chat_server(lambda messages, tools: Answer("busy", status=500)) as server:
        down = ChatModel(base_url=server.url, model="m", retries=0)
        engine = ScriptedEngine(["never said"], renderer)
        env = TalkTo()
        env.endpoint = down
        t = await run_episode(env, Task(), engine=engine, renderer=renderer)

    assert t.failure is not None
    assert (t.failure.kind, t.failure.boundary) == ("environment", "reset")
    assert "HTTP 500" in t.failure.error


async def test_an_endpoints_own_deadline_counts_which_leaves_out_the_wait_for_room():
    async def say(messages, tools):
        await asyncio.sleep(0.05)  # longer than HASTY waits for a script
        return "Hi."

    with chat_server(say) as server:
        model = ChatModel(base_url=server.url, model="m", seconds=30, concurrency=1)
        heard = await asyncio.gather(*(SimulatedUser(model, "", HASTY).hear("Hello!") for _ in range(3)))

    assert heard == [UserReply("Hi.")] * 3


async def test_a_judge_chooses_a_word():
    said = iter(["Maybe.", "It was polite.\n**Yes**."])
    judge = Judge(ScriptedSpeaker(lambda messages, tools: next(said)))

    assert await judge.choose("Was it polite?") == "yes"
    with pytest.raises(InfraError, match="is 'maybe', which is none of the words yes or no"):
        await Judge(ScriptedSpeaker(lambda messages, tools: "Maybe.")).choose("Was it polite?")
