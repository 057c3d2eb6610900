"""The wires without an episode: each request stands alone."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import aiohttp
import anthropic
import openai
import pytest

from agentrl.engine.scripted import ScriptedEngine
from agentrl.errors import ConfigError, EngineError
from agentrl.gateway.serving.standalone import Standalone, running_server
from agentrl.testing import call
from agentrl.types import Limits
from tests.gateway.wires.fakes import TOOLS

ASK = {"model": "m", "messages": [{"role": "user", "content": "Go."}]}


class Noting(ScriptedEngine):
    """An engine that keeps what it is asked to sample with."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.params, self.sessions = [], []
        self.started, self.ended = asyncio.Event(), asyncio.Event()

    async def generate(self, input_ids, sampling_params, *, session_id="", rid=""):
        self.params.append(sampling_params)
        self.sessions.append(session_id)
        self.started.set()
        try:
            return await super().generate(input_ids, sampling_params, session_id=session_id, rid=rid)
        finally:
            self.ended.set()


@asynccontextmanager
async def serving(renderer, turns, *, seconds=0.0, limits=Limits(context=400), **options):  # noqa: B008
    engine = Noting(turns, renderer, seconds=seconds)
    answering = Standalone(engine, renderer, limits)
    async with running_server(answering, model_name="my-model", **options) as url:
        yield engine, url


@pytest.fixture
def says(renderer):
    return lambda ids: "Found." if "It is here." in renderer.decode(ids) else call("look", where="here")


async def test_requests_stand_alone_and_may_be_repeated(renderer, says):
    async with serving(renderer, says) as (engine, url), openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x") as gpt:
        assert [model.id async for model in gpt.models.list()] == ["my-model"]
        first, again = [await gpt.chat.completions.create(**ASK, tools=TOOLS["chat"]) for _ in range(2)]
        assert first.choices[0].message.tool_calls[0].function.name == "look"
        assert first.choices[0].finish_reason == again.choices[0].finish_reason == "tool_calls"
        assert first.usage.prompt_tokens == len(engine.requests[0])
        assert engine.requests[0] == engine.requests[1]
        message = first.choices[0].message
        result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "It is here."}
        history = [*ASK["messages"], message.model_dump(exclude_none=True), result]
        last = await gpt.chat.completions.create(model="m", messages=history, tools=TOOLS["chat"])
        assert last.choices[0].message.content == "Found."
        assert len(set(engine.sessions)) == 1, "one conversation, one place in the engine's prefix cache"
        response = await gpt.responses.create(model="m", input="Go.")
        assert response.output[-1].type == "function_call"
        stream = await gpt.chat.completions.create(**ASK, stream=True, n=2)
        assert {chunk.choices[0].index async for chunk in stream} == {0, 1}


async def test_what_a_client_asks_of_the_sampling_is_obeyed(renderer, says):
    async with serving(renderer, says) as (engine, url):
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as gpt:
            await gpt.chat.completions.create(**ASK, temperature=0, top_p=0.5, seed=7, max_tokens=5, stop="END")
            params = engine.params[0]
            assert (params["temperature"], params["top_p"], params["sampling_seed"]) == (0, 0.5, 7)
            assert (params["max_new_tokens"], params["stop"]) == (5, ["END"])
            await gpt.chat.completions.create(**ASK, frequency_penalty=0, logit_bias={})
            for wrong in ({"frequency_penalty": 1}, {"extra_body": {"min_p": 0.1}}, {"temperature": "hot"}):
                with pytest.raises(openai.BadRequestError, match=r"min_p|frequency_penalty|temperature"):
                    await gpt.chat.completions.create(**ASK, **wrong)
            with pytest.raises(openai.BadRequestError, match="maximum context length") as said:
                await gpt.chat.completions.create(model="m", messages=[{"role": "user", "content": "word " * 500}])
            assert said.value.code == "context_length_exceeded"
        assert len(engine.requests) == 2


async def test_the_engine_stops_when_its_client_goes(renderer):
    async with serving(renderer, ["Slow."], seconds=60.0) as (engine, url), aiohttp.ClientSession() as client:
        asking = asyncio.create_task(client.post(f"{url}/v1/chat/completions", json=ASK))
        await engine.started.wait()
        asking.cancel()
        async with asyncio.timeout(5):
            await engine.ended.wait()


async def test_a_broken_engine_can_be_asked_again(renderer):
    turns = [EngineError("gone"), "Back."]
    async with serving(renderer, turns) as (_, url), openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x") as gpt:
        assert (await gpt.chat.completions.create(**ASK)).choices[0].message.content == "Back."


async def test_the_key_stands_where_each_client_puts_it(renderer, says):
    async with serving(renderer, says, api_key="secret") as (_, url):
        async with anthropic.AsyncAnthropic(base_url=url, api_key="secret") as claude:
            assert (await claude.messages.create(**ASK, max_tokens=99)).stop_reason == "tool_use"
        for key, base in (("wrong", "/v1"), ("wrong", "/s/none/v1")):
            async with openai.AsyncOpenAI(base_url=f"{url}{base}", api_key=key) as gpt:
                with pytest.raises(openai.AuthenticationError, match="API key"):
                    await gpt.chat.completions.create(**ASK)
        async with openai.AsyncOpenAI(base_url=f"{url}/s/secret/v1", api_key="none") as gpt:
            await gpt.chat.completions.create(**ASK)
        async with aiohttp.ClientSession() as client, client.get(f"{url}/health") as answer:
            assert answer.status == 200


@pytest.mark.parametrize(
    "headers", [{"Origin": "http://evil.example"}, {"Host": "evil.example"}, {"Sec-Fetch-Site": "cross-site"}]
)
async def test_web_pages_are_refused(renderer, says, headers):
    async with serving(renderer, says) as (engine, url), aiohttp.ClientSession(headers=headers) as client:
        async with client.post(f"{url}/v1/messages", json=ASK) as answer:
            assert (answer.status, (await answer.json())["error"]["type"]) == (403, "permission_error")
        assert engine.requests == []


async def test_others_who_reach_it_are_warned_of(renderer, says, caplog):
    async with serving(renderer, says, host="0.0.0.0"):
        assert "anyone who reaches it may generate;" in caplog.text
    with pytest.raises(ConfigError, match="every address"):
        async with serving(renderer, says, host=""):
            pass
