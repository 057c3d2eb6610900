"""The server in front of real sessions: the vendors' clients and a model, token for token."""

from __future__ import annotations

import anthropic
import openai
import pytest

from agentrl.testing import call
from tests.gateway.wires.fakes import TOOLS
from tests.gateway.wires.sessions import play as play
from tests.gateway.wires.sessions import segments
from tests.gateway.wires.sockets import connected, read_until


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("seconds", [0.0, 0.05])
async def test_an_answer_that_nobody_read_is_given_again(play, stream, seconds):
    gateway, session = play(["One.", "Two."], seconds)
    async with connected(gateway, stream=stream):
        if not seconds:  # else the client goes while the engine runs
            await session.delivered.wait()
    await session.lost.wait()
    for expected in (b"One.", b"Two."):  # an answer that was read is not given again
        async with connected(gateway, stream=stream) as plain:
            assert expected in await read_until(plain, b"[DONE]" if stream else b"}}}")
    assert len(session.engine.requests) == 2
    assert len(segments(session)) == 2


TURNS = [call("look", where="here"), {**call("look", where="there"), "content": "Once more."}, "Found."]


async def ask_messages(url, key, stream):
    history = [{"role": "user", "content": "Look for it."}]
    async with anthropic.AsyncAnthropic(base_url=url, auth_token=key, api_key=None) as client:
        for _ in TURNS:
            asked = {"model": "m", "max_tokens": 99, "messages": history, "tools": TOOLS["messages"]}
            if stream:
                async with client.messages.stream(**asked) as events:
                    message = await events.get_final_message()
            else:
                message = await client.messages.create(**asked)
            calls = [block for block in message.content if block.type == "tool_use"]
            answers = [{"type": "tool_result", "tool_use_id": one.id, "content": f"saw {one.input}"} for one in calls]
            history += [message.to_param(), {"role": "user", "content": answers}]
    return message.content[0].text, message.usage.input_tokens + message.usage.cache_read_input_tokens


async def ask_responses(url, key, stream):
    history = [{"role": "user", "content": "Look for it."}]
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key) as client:
        for _ in TURNS:
            asked = {"model": "m", "store": False, "input": history, "tools": TOOLS["responses"]}
            if stream:
                async with client.responses.stream(**asked) as events:
                    response = await events.get_final_response()
            else:
                response = await client.responses.create(**asked)
            history += [item.model_dump(exclude={"parsed_arguments"}) for item in response.output]
            history += [
                {"type": "function_call_output", "call_id": item.call_id, "output": f"saw {item.arguments}"}
                for item in response.output
                if item.type == "function_call"
            ]
    return response.output_text, response.usage.input_tokens


async def ask_chat(url, key, stream):
    history = [{"role": "user", "content": "Look for it."}]
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key) as client:
        for _ in TURNS:
            asked = {"model": "m", "messages": history, "tools": TOOLS["chat"]}
            if stream:
                async with client.chat.completions.stream(**asked, stream_options={"include_usage": True}) as events:
                    completion = await events.get_final_completion()
            else:
                completion = await client.chat.completions.create(**asked)
            message = completion.choices[0].message
            history.append(message.model_dump(exclude_none=True))
            history += [
                {"role": "tool", "tool_call_id": one.id, "content": f"saw {one.function.arguments}"}
                for one in message.tool_calls or ()
            ]
    return message.content, completion.usage.prompt_tokens


@pytest.mark.parametrize("ask", [ask_messages, ask_responses, ask_chat])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_clients_loop_is_one_segment(play, ask, stream):
    gateway, session = play(TURNS)
    said, prompt = await ask(gateway.url, session.key, stream)
    assert (said, prompt) == ("Found.", len(session.engine.requests[-1]))
    (segment,) = segments(session)
    assert len(segment.turns) == 3
    assert list(segment.ids)[: len(session.engine.requests[-1])] == session.engine.requests[-1]


async def test_a_prompt_too_long_and_an_ended_session_end_the_client(play):
    gateway, session = play(["One."], turns=1, context=300)
    async with anthropic.AsyncAnthropic(base_url=gateway.url, auth_token=session.key, api_key=None) as client:
        ask = {"model": "m", "max_tokens": 9}
        long = [{"role": "user", "content": "word " * 300}]
        with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > 300 maximum"):
            await client.messages.create(**ask, messages=long)
        short = [{"role": "user", "content": "Go."}]
        counted = await client.messages.count_tokens(model="m", messages=short)
        told = await client.messages.create(**ask, messages=short)
        assert counted.input_tokens == told.usage.input_tokens + told.usage.cache_read_input_tokens
        with pytest.raises(anthropic.BadRequestError, match="1 replies"):
            await client.messages.create(**ask, messages=[{"role": "user", "content": "More."}])
