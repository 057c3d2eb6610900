"""The vendors' own clients against a gateway: what they read is what was sampled, streamed and whole."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace

import anthropic
import openai
import pytest

from agentrl.chat.request import Entry, RefusedError
from tests.gateway.wires.fakes import CALL, FULL, OTHER, PLAIN, TOOLS

ASK = [{"role": "user", "content": "Go."}]


async def message(claude, stream, **kwargs):
    sent = {"model": "m", "max_tokens": 9, "messages": ASK, "tools": TOOLS["messages"], **kwargs}
    if not stream:
        return await claude.messages.create(**sent)
    async with claude.messages.stream(**sent) as events:
        return await events.get_final_message()


async def response(gpt, stream, **kwargs):
    sent = {"model": "m", "input": ASK, "tools": TOOLS["responses"], **kwargs}
    if not stream:
        return await gpt.responses.create(**sent)
    async with gpt.responses.stream(**sent) as events:
        return await events.get_final_response()


async def completion(gpt, stream, **kwargs):
    sent = {"model": "m", "messages": ASK, "tools": TOOLS["chat"], **kwargs}
    if not stream:
        return await gpt.chat.completions.create(**sent)
    async with gpt.chat.completions.stream(**sent, stream_options={"include_usage": True}) as events:
        return await events.get_final_completion()


@pytest.mark.parametrize("stream", [False, True])
async def test_messages(claude, session, stream):
    read = await message(claude, stream)
    thought, text, *calls = read.content
    assert (thought.thinking, thought.signature, text.text) == (FULL.reasoning, FULL.receipt, FULL.content)
    assert [(one.id, one.name, one.input) for one in calls] == [
        (CALL.id, CALL.name, CALL.arguments),
        (OTHER.id, OTHER.name, {}),
    ]
    assert (read.id, read.model, read.stop_reason) == ("msg_r1", "m", "tool_use")
    assert (read.usage.input_tokens, read.usage.cache_read_input_tokens, read.usage.output_tokens) == (40, 60, 7)
    assert session.exchanges[-1].told == ["delivered"]
    assert session.request.tools == tuple(TOOLS["chat"])
    assert (session.request.stream, session.request.max_tokens) == (stream, 9)


@pytest.mark.parametrize("stream", [False, True])
async def test_responses(gpt, session, stream):
    read = await response(gpt, stream)
    thought, text, *calls = read.output
    assert (thought.summary[0].text, thought.encrypted_content) == (FULL.reasoning, FULL.receipt)
    assert (text.content[0].text, read.output_text) == (FULL.content, FULL.content)
    assert [(one.call_id, one.name, json.loads(one.arguments)) for one in calls] == [
        (CALL.id, CALL.name, CALL.arguments),
        (OTHER.id, OTHER.name, {}),
    ]
    usage = read.usage
    assert (read.status, usage.input_tokens, usage.input_tokens_details.cached_tokens) == ("completed", 100, 60)
    assert (usage.output_tokens, usage.total_tokens) == (7, 107)
    assert session.exchanges[-1].told == ["delivered"]
    assert session.request.tools == tuple(TOOLS["chat"])


@pytest.mark.parametrize("stream", [False, True])
async def test_chat(gpt, session, stream):
    read = await completion(gpt, stream)
    (choice,) = read.choices
    assert (choice.message.content, choice.message.reasoning_content) == (FULL.content, FULL.reasoning)
    told = [(one.id, one.function.name, json.loads(one.function.arguments)) for one in choice.message.tool_calls]
    assert told == [(CALL.id, CALL.name, CALL.arguments), (OTHER.id, OTHER.name, {})]
    assert choice.finish_reason == "tool_calls"
    usage = read.usage
    assert (usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens, usage.completion_tokens) == (100, 60, 7)
    assert session.exchanges[-1].told == ["delivered"]
    assert session.request.tools == tuple(TOOLS["chat"])


@pytest.mark.parametrize("stream", [False, True])
async def test_several_choices(gpt, session, stream):
    session.answer = lambda request: [FULL, replace(PLAIN, content="Two.")][: request.n]
    read = await completion(gpt, stream, n=2)
    assert [choice.message.content for choice in read.choices] == ["Hello.", "Two."]
    assert [choice.finish_reason for choice in read.choices] == ["tool_calls", "stop"]
    assert (read.usage.prompt_tokens, read.usage.completion_tokens) == (100, 14)
    assert session.request.n == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_how_a_reply_ends(claude, gpt, session, stream):
    session.answer = lambda _: [replace(PLAIN, stop="length")]
    assert (await message(claude, stream)).stop_reason == "max_tokens"
    with pytest.raises(openai.LengthFinishReasonError) if stream else nullcontext():  # so the client's helper says it
        assert (await completion(gpt, stream)).choices[0].finish_reason == "length"
    cut = await gpt.responses.create(model="m", input=ASK, stream=stream)
    if stream:
        cut = [event async for event in cut][-1].response
    assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    session.answer = lambda _: [replace(PLAIN, stop="stop_sequence", stop_sequence="END")]
    read = await message(claude, stream, stop_sequences=["END"])
    assert (read.stop_reason, read.stop_sequence, session.request.stop) == ("stop_sequence", "END", ("END",))
    assert (await completion(gpt, stream, stop="END")).choices[0].finish_reason == "stop"
    assert session.request.stop == ("END",)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("late", [False, True])
async def test_a_full_context_in_the_words_on_which_clients_compact(claude, gpt, session, stream, late):
    full = RefusedError("context_full", "prompt is too long: 12 tokens > 10 maximum")
    if late:
        session.answer = lambda _: full
    else:
        session.accept = session.answer = lambda _: full
    with pytest.raises(anthropic.APIStatusError, match="prompt is too long: 12 tokens > 10 maximum") as told:
        await message(claude, stream)
    if not (late and stream):
        assert (told.value.status_code, told.value.body["error"]["type"]) == (400, "invalid_request_error")
    for ask in (completion, response):
        if late and stream and ask is response:
            continue  # the client's accumulator does not read failures: see the next test
        with pytest.raises(openai.APIError, match="This model's maximum context length") as said:
            await ask(gpt, stream)
        assert said.value.code == "context_length_exceeded"
    assert session.exchanges[-1].told == []


async def test_a_response_that_fails_behind_its_headers(gpt, session):
    session.answer = lambda _: RefusedError("context_full", "prompt is too long: 12 tokens > 10 maximum")
    events = [event async for event in await gpt.responses.create(model="m", input="Go.", stream=True)]
    assert [event.type for event in events] == ["response.created", "response.in_progress", "response.failed"]
    assert events[-1].response.error.code == "context_length_exceeded"


async def test_an_overloaded_gateway_is_asked_again(claude, gpt, session):
    answers = iter([RefusedError("overloaded", "no room"), [PLAIN]] * 2)
    session.answer = lambda _: next(answers)
    session.accept = lambda _: None
    assert (await claude.with_options(max_retries=1).messages.create(model="m", max_tokens=9, messages=ASK)).content
    assert [one.request.retried for one in session.exchanges] == [False, True]
    first, again = session.exchanges
    assert first.request.digest == again.request.digest
    assert (await gpt.with_options(max_retries=1).chat.completions.create(model="m", messages=ASK)).choices


async def test_probes(claude, gpt, gateway, session):
    assert [model.id async for model in claude.models.list()] == ["agentrl"]
    assert [model.id async for model in gpt.models.list()] == ["agentrl"]
    assert (await gpt.models.retrieve("any")).id == "any"
    assert (await claude.messages.count_tokens(model="m", messages=ASK)).input_tokens == len("Go.")
    assert (await gpt.responses.input_tokens.count(model="m", input="Go.")).input_tokens == len("Go.")
    assert session.exchanges == []


async def test_what_is_sampled_is_not_what_a_client_asks(claude, gpt, session):
    await message(claude, False, extra_body={"temperature": 0.0, "top_k": 3})
    assert session.request.recorded == {"temperature": 0.0, "top_k": 3}
    await completion(gpt, False, temperature=0.0, seed=5)
    assert session.request.recorded == {"temperature": 0.0, "seed": 5}


@pytest.mark.parametrize("key", ["wrong", "key-1"])
async def test_an_unknown_key_and_an_ended_session(gateway, session, key):
    gateway.remove(session)
    async with anthropic.AsyncAnthropic(base_url=gateway.url, auth_token=key, api_key=None) as client:
        with pytest.raises(anthropic.BadRequestError, match="session"):
            await message(client, True)
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=key) as client:
        for ask in (completion, response):
            with pytest.raises(openai.BadRequestError, match="session"):
                await ask(client, True)
    assert session.exchanges == []


async def test_keys_may_stand_in_other_places(gateway, session):
    clients = (
        anthropic.AsyncAnthropic(base_url=gateway.url, api_key=session.key),
        anthropic.AsyncAnthropic(base_url=f"{gateway.url}/s/{session.key}", api_key="other"),
        anthropic.AsyncAnthropic(base_url=gateway.url, api_key="none", default_headers={"x-goog-api-key": session.key}),
    )
    for client in clients:
        async with client:
            await message(client, False)
    assert len(session.exchanges) == 3
    assert session.request.entries == (Entry("user", "Go."),)
