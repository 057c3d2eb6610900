"""Speakers: a model behind an endpoint that answers as real ones do, and a function in its place."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from datetime import UTC, datetime

import pytest

from agentrl._util import backoff
from agentrl._util.backoff import retry_after
from agentrl.chat.client import ChatModel, ScriptedSpeaker, SpeakerConfig, speaker
from agentrl.chat.completions import read_reply, wire_message
from agentrl.errors import ConfigError, ContextFullError, InfraError, RequestError
from agentrl.testing import call
from agentrl.testing.chat_server import Answer, chat_server

ASKED = [{"role": "user", "content": "Capital of France?"}]
KEY = "sk-secret-0123456789"
SEARCH = {
    "type": "function",
    "function": {"name": "search", "description": "", "parameters": {"type": "object", "properties": {}}},
}


def model(server, **settings) -> ChatModel:
    return ChatModel(base_url=server.url, model="m", **settings)


def answering(*answers):
    """A reply function that gives these one after the other, and the last for ever."""
    left = list(answers)

    def reply(messages, tools):
        found = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(found, Exception):
            raise found
        return found

    return reply


def read(message, **around):
    """What a chat completion with this message says."""
    choice = {"index": 0, "message": message, "finish_reason": "stop"} | around
    return read_reply({"choices": [choice]}, "http://m")


def tool_call(arguments, **own):
    return {"id": "a", "type": "function", "function": {"name": "search", "arguments": arguments}} | own


async def test_a_function_speaks():
    async def say(messages, tools):
        return f"{len(messages)} messages, {len(tools)} tools"

    assert await ScriptedSpeaker(say).reply(ASKED) == {"role": "assistant", "content": "1 messages, 0 tools"}


def test_a_configuration_names_a_speaker(tmp_path):
    (tmp_path / "who.py").write_text("def say(messages, tools):\n    return 'Paris'\n")
    assert isinstance(speaker({"script": f"{tmp_path}/who.py:say"}), ScriptedSpeaker)
    model = speaker(SpeakerConfig(base_url="http://127.0.0.1:1/v1", model="m", options={"temperature": 0}))
    assert isinstance(model, ChatModel)
    assert (model.model, model.host, model.options) == ("m", "127.0.0.1:1", {"temperature": 0})


@pytest.mark.parametrize("config", [{}, {"script": "a.py:b", "model": "m"}, {"base_url": "http://a"}, {"who": 1}])
def test_a_configuration_that_names_none_is_refused_in_one_line(config):
    with pytest.raises(ConfigError, match="this names no speaker: ") as info:
        speaker(config)
    assert "\n" not in str(info.value)


async def test_it_asks_with_messages_and_tools_and_counts_what_it_took():
    with chat_server(lambda messages, tools: call("search", query="France")) as server:
        asked = model(server, options={"top_p": 0.5})
        said = await asked.reply(ASKED, [SEARCH])
        await asked.reply([*ASKED, said, {"role": "tool", "tool_call_id": "x", "content": "Paris"}], [SEARCH])
    first, second = server.requests
    assert first == {"model": "m", "messages": ASKED, "tools": [SEARCH], "top_p": 0.5}
    assert said["tool_calls"][0]["function"] == {"name": "search", "arguments": {"query": "France"}}
    assert second["messages"][1]["tool_calls"][0]["function"]["arguments"] == '{"query": "France"}'
    assert (asked.usage.requests, asked.usage.responses_without_usage) == (2, 0)
    assert asked.usage.prompt_tokens > 0 < asked.usage.completion_tokens
    assert "Authorization" not in server.headers[0]


# The key


async def test_the_key_is_sent_and_is_in_no_message_and_no_repr(monkeypatch):
    monkeypatch.setenv("MY_KEY", f"{KEY}\n")  # as `cat` of a file gives it
    leaks = Answer({"error": {"message": f"no access for {KEY}: Bearer {KEY}"}}, 403)
    with chat_server(answering("Paris", leaks, Answer(f"down, {KEY}", 500))) as server:
        asked = model(server, key="MY_KEY", retries=0)
        assert (await asked.reply(ASKED))["content"] == "Paris"
        with pytest.raises(ConfigError, match=r"refuses the key in \$MY_KEY \(HTTP 403: .*\*\*\*") as refused:
            await asked.reply(ASKED)
        with pytest.raises(InfraError, match=r"down, \*\*\*") as down:
            await asked.reply(ASKED)
    assert server.headers[0]["Authorization"] == f"Bearer {KEY}"
    shown = [repr(asked), repr(asked._service), json.dumps(server.requests)]
    for exc in (refused.value, down.value):
        shown += [str(exc), repr(exc.__cause__), repr(exc.__context__)]
    assert not [one for one in shown if KEY in one]


async def test_a_401_says_which_variable_was_read(monkeypatch):
    monkeypatch.delenv("MY_KEY", raising=False)
    with chat_server(answering("Paris"), key=KEY) as server:
        with pytest.raises(ConfigError, match=r"a request without a key, as \$MY_KEY is not set \(HTTP 401"):
            await model(server, key="MY_KEY").reply(ASKED)
        monkeypatch.setenv("MY_KEY", KEY)
        assert (await model(server, key="MY_KEY").reply(ASKED))["content"] == "Paris"


@pytest.mark.parametrize("url", ["localhost:80", "ftp://a/v1", "http://", "http://me:pw@host/v1"])
def test_an_address_that_is_none_or_holds_a_password_is_refused(url):
    with pytest.raises(ConfigError) as info:
        ChatModel(base_url=url, model="m")
    assert "pw" not in str(info.value)


# Errors, retries, limits of the rate


async def test_a_server_that_asks_to_wait_is_left_alone_by_all_requests(monkeypatch):
    monkeypatch.setattr("random.uniform", lambda low, high: low)
    at: list[float] = []
    begun = threading.Barrier(2)

    def reply(messages, tools):
        at.append(time.monotonic())
        if len(at) <= 2:
            begun.wait(10)
            return Answer({"error": {"message": "slow down"}}, 429, {"Retry-After": "0.6"})
        return "Paris"

    with chat_server(reply) as server:
        asked = model(server, seconds=0.5)  # waiting that the server asks for is not counted
        said = await asyncio.gather(asked.reply(ASKED), asked.reply(ASKED))
    assert [one["content"] for one in said] == ["Paris", "Paris"]
    assert len(at) == 4
    assert min(at[2:]) - max(at[:2]) > 0.5


async def test_no_wait_is_longer_than_the_bound(monkeypatch):
    monkeypatch.setattr(backoff, "LONGEST_RETRY_AFTER_S", 0.2)
    with chat_server(answering(Answer("later", 503, {"Retry-After": "86400"}), "Paris")) as server:
        started = time.monotonic()
        await model(server).reply(ASKED)
    assert time.monotonic() - started < 5


NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7.0),
        ({"Retry-After": "1.5"}, 1.5),
        ({"Retry-After": "Fri, 02 Jan 2026 03:04:35 GMT"}, 30.0),
        ({"Retry-After": "Fri, 02 Jan 2026 03:03:05 GMT"}, 0.0),
        ({"Retry-After": "Friday, 02-Jan-26 03:04:35 GMT"}, 30.0),
        ({"retry-after-ms": "250", "Retry-After": "1"}, 0.25),
        ({"Retry-After": "-3"}, 0.0),
        ({"Retry-After": "soon"}, 0.0),
        ({"Retry-After": "86400"}, 60.0),
        ({}, 0.0),
    ],
)
def test_the_wait_that_a_server_asks_for(headers, seconds):
    assert retry_after(headers, NOW) == seconds


async def test_a_quota_that_is_used_up_is_not_waited_for():
    spent = Answer({"error": {"message": "You exceeded your current quota", "code": "insufficient_quota"}}, 429)
    with chat_server(answering(spent)) as server, pytest.raises(ConfigError, match=r"HTTP 429.*current quota"):
        await model(server).reply(ASKED)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"choices": []}, "without any choice"),
        ({"choices": None}, "without any choice"),
        ({"error": {"message": "upstream is down", "code": 502}, "choices": None}, "upstream is down"),
        ({"error": "overloaded"}, "overloaded"),
        ({"choices": [{"finish_reason": "error", "error": {"code": 503, "message": "no provider"}}]}, "no provider"),
        ({"object": "error", "message": "the model is loading", "code": 503}, "the model is loading"),
        ("{", "JSON"),
        (" ", "an empty answer"),
        (Answer("<html>busy</html>", 502), "HTTP 502"),
    ],
)
async def test_what_may_pass_is_tried_again(answer, said):
    answer = Answer(answer) if isinstance(answer, str) else answer
    with chat_server(answering(answer, "Paris")) as server:
        assert (await model(server).reply(ASKED))["content"] == "Paris"
    with chat_server(answering(answer)) as server, pytest.raises(InfraError, match=said):
        await model(server, retries=0).reply(ASKED)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"choices": [], "error": {"message": "no such model", "code": 404}}, "error 404: no such model"),
        (Answer({"error": {"message": "model not found"}}, 404), "HTTP 404.*model not found"),
        (Answer("<html>", 200, {"Content-Type": "text/html"}), "a web page; correct its address"),
        (Answer({"object": "error", "message": "max_tokens must be at least 1", "code": 400}), "error 400: max_tokens"),
        (Answer("data: {}\n\n", 200, {"Content-Type": "text/event-stream"}), "a stream, which it was not asked for"),
        (Answer([{"error": {"message": "no thought_signature"}}], 400), "HTTP 400.*no thought_signature"),
        (Answer({"object": "list", "data": []}), "is not a chat completion; is it OpenAI-compatible"),
        (Answer({"error": {"message": "Unknown parameter: 'top_q'"}}, 400), "HTTP 400.*top_q"),
    ],
)
async def test_what_will_always_be_refused_ends_the_run(answer, said):
    with chat_server(answering(answer)) as server, pytest.raises(ConfigError, match=said) as info:
        await model(server).reply(ASKED)
    assert len(server.requests) == 1
    assert "\n" not in str(info.value)


TOO_LONG = "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens."


async def test_a_refusal_of_one_conversation_is_not_one_of_all():
    answers = [
        Answer({"error": {"message": TOO_LONG, "code": "context_length_exceeded"}}, 400),
        Answer({"error": {"message": "filtered", "code": "content_filter"}}, 400),
        "Paris",
        Answer({"error": {"message": "messages[3] is odd"}}, 400),
    ]
    with chat_server(answering(*answers)) as server:
        asked = model(server)
        with pytest.raises(ContextFullError, match="maximum context length"):
            await asked.reply(ASKED)
        with pytest.raises(RequestError, match="filtered"):
            await asked.reply(ASKED)
        await asked.reply(ASKED)
        with pytest.raises(RequestError, match="odd"):
            await asked.reply(ASKED)


# What servers take


async def test_the_bound_of_an_answer_goes_under_the_name_that_the_server_takes():
    refusal = (
        "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
    )

    with chat_server(lambda messages, tools: "Paris") as server:
        await model(server).ask(ASKED, most=9)
        await model(server).ask(ASKED, most=None)
    assert [body.get("max_tokens") for body in server.requests] == [9, None]

    def reply(messages, tools):
        return Answer({"error": {"message": refusal}}, 400) if "max_tokens" in server.requests[-1] else "Paris"

    with chat_server(reply) as server:
        asked = model(server)
        await asked.ask(ASKED, most=9)
        await asked.ask(ASKED, most=8)
        await model(server, options={"max_tokens": 7}).reply(ASKED)  # also a bound that the user gave
    assert [body.get("max_completion_tokens") for body in server.requests] == [None, 9, 8, None, 7]
    assert "temperature" not in server.requests[0]


async def test_fields_that_a_server_refuses_by_name_are_left_out_from_then_on():
    refusal = "'messages.1' : property 'reasoning_content' is unsupported"

    def reply(messages, tools):
        odd = any("reasoning_content" in message for message in messages)
        return Answer({"error": {"message": refusal}}, 400) if odd else "Paris"

    said = {"role": "assistant", "content": "hm", "reasoning_content": "deep"}
    users = {"role": "user", "content": "hm", "reasoning_content": "not ours to leave out"}
    with chat_server(reply) as server:
        asked = model(server)
        await asked.reply([*ASKED, said, *ASKED])
        await asked.reply([*ASKED, said, *ASKED])
        assert len(server.requests) == 3
        with pytest.raises(RequestError, match="reasoning_content"):
            await asked.reply([users])


async def test_a_null_beside_calls_becomes_text_where_a_server_wants_that():
    refusal = {"detail": [{"loc": ["body", "messages", 1, "content"], "msg": "Input should be a valid string"}]}

    def reply(messages, tools):
        return Answer(refusal, 422) if any(message["content"] is None for message in messages) else "Paris"

    said = {"role": "assistant", "content": None, "tool_calls": [tool_call("{}")]}
    with chat_server(reply) as server:
        await model(server).reply([*ASKED, said, {"role": "tool", "tool_call_id": "a", "content": "x"}])
    assert [body["messages"][1]["content"] for body in server.requests] == [None, ""]


# Answers as they come


def test_the_oldest_form_of_a_choice_is_read():
    assert read_reply({"choices": [{"text": "Paris"}]}, "http://m").message["content"] == "Paris"


@pytest.mark.parametrize(
    ("message", "content", "thought"),
    [
        ({"content": "Paris"}, "Paris", None),
        ({"content": None}, "", None),
        ({}, "", None),
        ({"content": [{"type": "text", "text": "Par"}, {"type": "text", "text": "is"}]}, "Paris", None),
        ({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, "Paris"]}, "Paris", "hm"),
        ({"content": "Paris", "reasoning_content": "hm"}, "Paris", "hm"),
        ({"content": "Paris", "reasoning": "hm"}, "Paris", "hm"),
        ({"content": "<think>\nhm\n</think>\n\nParis"}, "Paris", "hm"),
        ({"content": "hm</think>Paris"}, "Paris", "hm"),
        ({"content": {"type": "text", "text": "Paris"}}, "Paris", None),
        ({"content": 42}, "42", None),
        ({"content": None, "refusal": "I cannot."}, "I cannot.", None),
    ],
)
def test_text_and_thoughts(message, content, thought):
    said = read({"role": "assistant", **message}).message
    assert (said["role"], said["content"], said.get("reasoning_content")) == ("assistant", content, thought)


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ('{"query": "a"}', {"query": "a"}),
        ({"query": "a"}, {"query": "a"}),
        ("", {}),
        (None, {}),
        ("null", {}),
        ('{"query": "a"', '{"query": "a"'),
        ("[1]", "[1]"),
        ('{"query": NaN}', '{"query": NaN}'),
        ([1], "[1]"),
    ],
)
def test_arguments_are_a_dict_or_the_text_as_it_came(arguments, found):
    reply = read({"content": None, "tool_calls": [tool_call(arguments)]})
    assert reply.message["tool_calls"][0]["function"]["arguments"] == found
    sent = reply.sent_back["tool_calls"][0]["function"]["arguments"]
    assert isinstance(json.loads(sent), dict), "servers refuse what is no JSON object"


def test_every_call_has_an_id_of_its_own():
    calls = [tool_call("{}"), tool_call("{}"), tool_call("{}", id=None), tool_call("{}", id="")]
    reply = read({"tool_calls": calls})
    ids = [one["id"] for one in reply.message["tool_calls"]]
    assert ids[0] == "a"
    assert len({*ids}) == 4
    assert all(ids)
    assert [one["id"] for one in reply.sent_back["tool_calls"]] == ids


def test_fields_of_the_servers_own_come_back_to_it():
    signed = tool_call("{}", extra_content={"google": {"thought_signature": "xyz"}})
    message = {"content": None, "tool_calls": [signed], "reasoning_details": [{"data": "abc"}], "annotations": []}
    reply = read(message)
    assert reply.sent_back["reasoning_details"] == [{"data": "abc"}]
    assert reply.sent_back["tool_calls"][0]["extra_content"] == {"google": {"thought_signature": "xyz"}}
    assert "annotations" not in reply.sent_back
    sent = wire_message(reply.message)
    assert sent["tool_calls"][0]["extra_content"] == {"google": {"thought_signature": "xyz"}}


@pytest.mark.parametrize(
    ("reason", "finish"),
    [("stop", "stop"), ("tool_calls", "stop"), (None, "stop"), ("length", "length"), ("content_filter", "filtered")],
)
def test_why_an_answer_ended(reason, finish):
    assert read({"content": "a"}, finish_reason=reason).finish == finish


@pytest.mark.parametrize(
    ("usage", "told"),
    [
        (
            {"prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}, "cost": 0.5},
            {"prompt_tokens": 3, "completion_tokens": 2, "cached_tokens": 1, "cost": 0.5},
        ),
        ({"prompt_tokens": None, "completion_tokens": -1, "prompt_tokens_details": None}, {}),
        (None, {}),
        ([], {}),
    ],
)
def test_what_an_answer_took(usage, told):
    answer = {"choices": [{"message": {"content": "a"}}], "usage": usage}
    assert read_reply(answer, "http://m").usage == told
