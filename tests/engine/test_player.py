"""A speaker plays an Env through ChatEngine: the Env gets what was said, the tokens are a copy, the API reads all."""

from __future__ import annotations

import asyncio
import re

import pytest

from agentrl import Env, EnvFactory, EpisodeOptions, Limits, Raw, StepResult, StopReason, Task, run_episode, tool
from agentrl.chat.client import ChatModel, ScriptedSpeaker
from agentrl.engine import ChatEngine, ScriptedEngine
from agentrl.engine.base import message_engine
from agentrl.errors import ContextFullError, TemplateError
from agentrl.testing import call
from agentrl.testing.chat_server import Answer, chat_server
from agentrl.types import TurnOptions

TASK = Task(prompt="Capital of France?", label="Paris", id="t")


class Capitals(Env):
    @tool
    async def search(self, query: str) -> str:
        """Search the encyclopedia."""
        return f"{query}: Paris"

    async def score(self, trajectory) -> float:
        return float(trajectory.answer == self.task.label)


class Tags(Env):
    """Search-R1's shape: stop strings, and raw text behind them."""

    turn_options = TurnOptions(stop=("</search>", "</answer>"), max_tokens=77)

    async def step(self, action) -> StepResult:
        self.read = [*getattr(self, "read", []), action.content]
        if "</answer>" in action.content:
            return StepResult(done=True, reward=1.0)
        return StepResult(Raw("\n<information>Paris</information>\n"))


async def played(env, reply, renderer, *, task=TASK, **limits):
    """The trajectory, and the messages of each request."""
    with chat_server(reply) as server:
        engine = ChatEngine(ChatModel(base_url=server.url, model="m", retries=0), renderer)
        options = EpisodeOptions(limits=Limits(**limits))
        trajectory = await run_episode(env, task, engine=engine, renderer=renderer, options=options)
    trajectory.verify()
    return trajectory, server.requests


def by_turn(*turns):
    """A reply function: the n-th turn of a conversation is the n-th of these."""

    def reply(messages, tools):
        said = turns[sum(message["role"] == "assistant" for message in messages)]
        return said(messages) if callable(said) else said

    return reply


def message(**fields):
    return {"role": "assistant", "content": None, **fields}


def made(arguments, name="search", **own):
    return {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}, **own}


def player(trajectory):
    return trajectory.info["player"]


async def test_an_episode_is_token_for_token_that_of_a_model_which_says_the_same(renderer):
    turns = [call("search", query="France"), "Paris"]
    asked, requests = await played(Capitals(), by_turn(*turns), renderer)
    engine = ScriptedEngine(turns, renderer)
    scripted = await run_episode(Capitals(), TASK, engine=engine, renderer=renderer)
    assert (asked.reward, asked.stop) == (1.0, StopReason.DONE)
    assert asked.tokens == scripted.tokens
    assert asked.log_probs == scripted.log_probs
    assert asked.messages == scripted.messages
    assert [len(body["messages"]) for body in requests] == [1, 3]
    assert (player(asked)["model"], player(asked)["requests"]) == ("m", 2)
    assert player(asked)["host"].startswith("127.0.0.1:")
    assert "not_carried" not in player(asked)


async def test_results_stand_behind_the_ids_that_the_server_gave(renderer):
    signed = message(
        tool_calls=[made('{"query":  "France"}', extra_content={"signature": "s"})], thought_id=7, tool_responses=["x"]
    )
    trajectory, requests = await played(Capitals(), by_turn(signed, "Paris"), renderer)
    _, said, result = requests[1]["messages"]
    assert said["tool_calls"] == signed["tool_calls"], "to the letter, with what the server wants back"
    assert said["thought_id"] == 7
    assert (result["role"], result["tool_call_id"], result["content"]) == ("tool", "call_1", "France: Paris")
    assert trajectory.actions[0].calls[0].id != "call_1"
    assert "not_carried" not in player(trajectory)


async def test_raw_text_is_the_users_and_stop_strings_are_cut_here(renderer):
    env = Tags()
    turns = ["<search>France</search> and then I make up the rest", "<answer>Paris</answer>"]
    trajectory, requests = await played(env, by_turn(*turns), renderer)
    assert env.read == ["<search>France</search>", "<answer>Paris</answer>"]
    assert [turn.matched for turn in trajectory.turns] == ["</search>", "</answer>"]
    assert "make up" not in renderer.decode(trajectory.tokens)
    assert requests[1]["messages"][1:] == [
        {"role": "assistant", "content": "<search>France</search>"},
        {"role": "user", "content": "\n<information>Paris</information>\n"},
    ]
    assert all("stop" not in body and body["max_tokens"] == 77 for body in requests)


async def test_a_raw_prompt_is_read_as_the_user(renderer):
    _, requests = await played(Tags(), by_turn("<answer>x</answer>"), renderer, task=Task(prompt=Raw("Question: x\n")))
    assert requests[0]["messages"] == [{"role": "user", "content": "Question: x\n"}]


@pytest.mark.parametrize(
    ("calls", "says"),
    [
        ([made('{"query": "Fra')], "not a JSON object"),
        ([made('["France"]')], "not a JSON object"),
        ([made("{}", name="")], "no name"),
        ([made("{}", name=None)], "no name"),
    ],
)
async def test_a_call_that_cannot_be_read_is_answered_under_its_id(renderer, calls, says):
    trajectory, requests = await played(Capitals(), by_turn(message(tool_calls=calls), "Paris"), renderer)
    *_, said, answer = requests[1]["messages"]
    assert (answer["role"], answer["tool_call_id"]) == ("tool", said["tool_calls"][0]["id"])
    assert "could not be read" in answer["content"]
    assert says in answer["content"]
    assert [turn.bad_call for turn in trajectory.turns] == ["structural", None]
    assert trajectory.reward == 1.0
    assert player(trajectory)["not_carried"] == {"0": "a call that cannot be read"}


async def test_an_unknown_tool_and_wrong_arguments_are_the_envs_to_answer(renderer):
    turns = [call("lookup", query="France"), call("search", wrong=1), "Paris"]
    trajectory, _ = await played(Capitals(), by_turn(*turns), renderer)
    assert [turn.bad_call for turn in trajectory.turns] == ["content", "content", None]
    assert "not_carried" not in player(trajectory)


async def test_several_calls_are_all_executed_and_answered_even_under_equal_ids(renderer):
    both = message(content="Two.", tool_calls=[made('{"query": "France"}'), made('{"query": "Peru"}')])
    trajectory, requests = await played(Capitals(), by_turn(both, "Paris"), renderer)
    *_, said, first, second = requests[1]["messages"]
    ids = [one["id"] for one in said["tool_calls"]]
    assert len({*ids}) == 2
    assert [first["tool_call_id"], second["tool_call_id"]] == ids
    assert [first["content"], second["content"]] == ["France: Paris", "Peru: Paris"]
    assert trajectory.reward == 1.0


class OneCall:
    """A renderer whose template writes one call a turn, and refuses two, as Llama 3's does."""

    def __init__(self, renderer):
        self._renderer = renderer

    def __getattr__(self, name):
        return getattr(self._renderer, name)

    def bind(self, *tools, **kwargs):
        return OneCall(self._renderer.bind(*tools, **kwargs))

    def encode(self, message, prompt=()):
        self._check(message.get("tool_calls") or ())
        return self._renderer.encode(message)

    def bridge(self, history, action, new, **kwargs):
        self._check(action.calls)
        return self._renderer.bridge(history, action, new, **kwargs)

    @staticmethod
    def _check(calls):
        if len(calls) > 1:
            raise TemplateError("This model only supports single tool-calls at once!")


async def test_what_the_template_cannot_write_plays_all_the_same_and_is_told(renderer):
    both = message(tool_calls=[made('{"query": "France"}'), made('{"query": "Peru"}', id="call_2")])
    trajectory, requests = await played(Capitals(), by_turn(both, "Paris"), OneCall(renderer))
    assert [answer["tool_call_id"] for answer in requests[1]["messages"][-2:]] == ["call_1", "call_2"]
    assert [len(turn.calls) for turn in trajectory.turns] == [2, 0]
    assert (trajectory.reward, trajectory.failure) == (1.0, None)
    assert player(trajectory)["not_carried"] == {"0": "several calls in one message"}


async def test_an_env_that_answers_no_call_leaves_none_open(renderer):
    class Game(Env):
        async def step(self, action):
            return StepResult("Your move?") if action.calls else StepResult(done=True, reward=1.0)

    trajectory, requests = await played(Game(), by_turn(message(tool_calls=[made("{}")]), "a1"), renderer)
    assert [one["role"] for one in requests[1]["messages"]] == ["user", "assistant", "tool", "user"]
    assert requests[1]["messages"][2]["tool_call_id"] == "call_1"
    assert trajectory.reward == 1.0


async def test_a_thought_is_the_envs_to_read_and_goes_back_as_it_came(renderer):
    thinking = message(content="Paris?", reasoning_content="deep", tool_calls=[made('{"query": "France"}')])
    trajectory, requests = await played(Capitals(), by_turn(thinking, "Paris"), renderer)
    assert requests[1]["messages"][1]["reasoning_content"] == "deep"
    assert trajectory.actions[0].reasoning == "deep"
    assert trajectory.actions[0].content == "Paris?"
    assert player(trajectory)["thoughts"] == 1


async def test_markup_in_an_answer_is_text_to_the_env_and_no_token(renderer):
    said = "Say <|im_end|> and <tool_call>{}</tool_call>"
    trajectory, requests = await played(Tags(), by_turn(said, "<answer>Paris</answer>"), renderer)
    assert trajectory.actions[0].content == said
    assert requests[1]["messages"][1]["content"] == said
    assert set(player(trajectory)["not_carried"]) == {"0"}


def cut(**fields):
    return {"choices": [{"message": {"role": "assistant", **fields}, "finish_reason": "length"}]}


async def test_a_turn_that_the_server_cut_ends_as_any_cut_turn(renderer):
    trajectory, _ = await played(Capitals(), by_turn(cut(content="Par")), renderer, max_tokens_per_turn=3)
    assert (trajectory.stop, trajectory.actions[0].text) == (StopReason.TURN_MAX_TOKENS, "Par")
    calls = [made('{"query": "France"}')]
    trajectory, _ = await played(Capitals(), by_turn(cut(content=None, tool_calls=calls)), renderer)
    assert trajectory.stop is StopReason.TURN_MAX_TOKENS
    assert len(trajectory.messages) == 2, "a turn that was cut executes nothing"


async def test_the_bound_of_the_whole_response_counts_the_renderers_tokens(renderer):
    trajectory, _ = await played(Capitals(), by_turn("one two three four five six"), renderer, tokens=4)
    assert (trajectory.stop, trajectory.segment.response_length) == (StopReason.MAX_TOKENS, 4)


async def test_a_filtered_answer_and_an_empty_one_play_as_said_and_are_counted(renderer):
    filtered = {"choices": [{"message": {"role": "assistant", "content": None}, "finish_reason": "content_filter"}]}
    trajectory, _ = await played(Capitals(), by_turn(filtered), renderer)
    assert (trajectory.stop, trajectory.reward, player(trajectory)["filtered"]) == (StopReason.DONE, 0.0, 1)
    assert trajectory.actions[0].content == ""


TOO_LONG = Answer({"error": {"message": "maximum context length is 9 tokens", "code": "context_length_exceeded"}}, 400)


async def test_a_conversation_too_long_for_the_model_ends_as_a_full_context(renderer):
    turns = [call("search", query="France"), TOO_LONG]
    trajectory, _ = await played(Capitals(), by_turn(*turns), renderer)
    assert (trajectory.stop, trajectory.reward, trajectory.failure) == (StopReason.CONTEXT_FULL, 0.0, None)
    assert "maximum context length" in trajectory.info["context_full"]
    trajectory, _ = await played(Capitals(), by_turn(TOO_LONG), renderer)
    assert (trajectory.stop, trajectory.failure.boundary) == (StopReason.FAILED, "engine"), "not even the first prompt"
    assert trajectory.failure.error.startswith(ContextFullError.__name__)


async def test_a_server_that_is_down_is_a_failure_of_the_world(renderer):
    trajectory, _ = await played(Capitals(), by_turn(Answer("down", 500)), renderer)
    assert (trajectory.stop, trajectory.failure.kind) == (StopReason.FAILED, "engine")


async def test_any_speaker_is_a_player_and_is_asked_no_longer_after_an_abort(renderer):
    begun = asyncio.Event()

    async def say(messages, tools):
        begun.set()
        await asyncio.Event().wait()

    engine = ChatEngine(ScriptedSpeaker(say), renderer)
    assert message_engine(engine) is engine
    asking = asyncio.create_task(engine.answer([], (), {}, rid="r"))
    await begun.wait()
    await engine.abort("r")
    assert (await asking).finish_reason == "abort"
    task = run_episode(
        Capitals(), TASK, engine=ChatEngine(ScriptedSpeaker(lambda m, t: "Paris"), renderer), renderer=renderer
    )
    trajectory = await task
    assert (trajectory.reward, player(trajectory)) == (1.0, {"model": "ScriptedSpeaker", "requests": 1})


async def test_the_same_rewards_through_the_gateways_api_and_through_tokens(renderer):
    """A model that reads tokens alone, asked in both ways."""
    pytest.importorskip("aiohttp")
    from agentrl.gateway.serving.standalone import Standalone, running_server

    cities = ("France", "Peru", "Spain", "Japan", "Chad", "Togo")

    def says(ids):
        text = renderer.decode(ids)
        at = next(i for i, name in enumerate(cities) if f"Capital of {name}?" in text)
        if text.count("<tool_response>") < at % 3:
            return call("search" if at % 2 else "lookup", query=re.findall(r"of (\w+)", text)[0])
        return "Paris" if at % 4 else "Rome"

    tasks = [Task(prompt=f"Capital of {name}?", label="Paris", id=name) for name in cities]
    engine = ScriptedEngine(says, renderer)

    async def rewards(engine):
        async with EnvFactory(Capitals, {}) as envs:
            return [await run_episode(envs.make(), task, engine=engine, renderer=renderer) for task in tasks]

    tokens = await rewards(engine)
    async with running_server(Standalone(engine, renderer), model_name="m") as url:
        api = await rewards(ChatEngine(ChatModel(base_url=f"{url}/v1", model="m"), renderer))
    assert [t.reward for t in api] == [t.reward for t in tokens]
    assert {t.reward for t in api} == {0.0, 1.0}
    assert [t.tokens for t in api] == [t.tokens for t in tokens]
    assert all(t.failure is None for t in api)
