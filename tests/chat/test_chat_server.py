"""The scripted server, as a test imports it and as a client sees it."""

from __future__ import annotations

import json
import subprocess
import sys
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from agentrl._util.http import HttpService
from agentrl.errors import InfraError
from agentrl.testing import call
from agentrl.testing.chat_server import chat_server

USE = """
with chat_server(lambda messages, tools: "Paris") as server:
    assert server.url.endswith("/v1")
assert Answer("down", status=503).status == 503
"""


@pytest.mark.thorough
@pytest.mark.parametrize("before", ["", "from agentrl.testing.chat_server import ChatServer\n"])
def test_it_is_imported_from_agentrl_testing_whatever_was_imported_before(before):
    code = f"{before}from agentrl.testing import Answer, chat_server\n{USE}"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.thorough
def test_the_import_of_the_package_stays_light():
    code = "import sys, agentrl.testing; print('agentrl.testing.chat_server' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False\n"


def test_it_lists_its_model_and_says_what_it_does_not_know():
    with chat_server(lambda messages, tools: "Paris") as server:
        with urlopen(f"{server.url}/models") as answer:
            assert [model["id"] for model in json.load(answer)["data"]] == ["scripted"]
        with pytest.raises(HTTPError) as refused:
            urlopen(f"{server.url}/files")
        assert refused.value.code == 404
        assert "no such path" in json.load(refused.value)["error"]["message"]


async def test_a_refused_connection_is_said_plainly_and_soon(monkeypatch):
    monkeypatch.setattr("agentrl._util.http._MAX_REFUSED_CONNECTS", 1)
    with pytest.raises(InfraError, match=r"^nothing listens at 127\.0\.0\.1:9$"):
        await HttpService(url="http://127.0.0.1:9/v1/chat/completions", retries=6).post({})


async def test_a_server_that_has_answered_before_may_come_back(monkeypatch):
    monkeypatch.setattr("agentrl._util.http._MAX_REFUSED_CONNECTS", 1)
    with chat_server(lambda messages, tools: "Paris") as server:
        service = HttpService(url=f"{server.url}/chat/completions", retries=1)
        await service.post({"messages": []})
    with pytest.raises(InfraError, match="failed 2 times; the last error: nothing listens at 127"):
        await service.post({"messages": []})


@pytest.fixture
def openai():
    return pytest.importorskip("openai", reason="openai is not installed")


async def test_a_client_that_streams_reads_the_same_reply_in_pieces(openai):
    def reply(messages, tools):
        return call("search", query="France") if len(messages) == 1 else "Paris, of course"

    async def streamed(messages, **options):
        stream = client.chat.completions.stream(model="m", messages=messages, **options)
        async with stream as events:
            return await events.get_final_completion()

    with chat_server(reply) as server:
        async with openai.AsyncOpenAI(base_url=server.url, api_key="none", max_retries=0) as client:
            for messages in ([{"role": "user", "content": "?"}], [{"role": "user", "content": "?"}] * 2):
                whole = await client.chat.completions.create(model="m", messages=messages)
                pieces = await streamed(messages, stream_options={"include_usage": True})
                assert pieces.choices[0].finish_reason == whole.choices[0].finish_reason
                assert plain(pieces.choices[0].message) == plain(whole.choices[0].message)
                assert pieces.usage == whole.usage
            assert (await streamed(messages)).usage is None


def plain(message):
    calls = [(call.id, call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls or ()]
    return message.content or "", calls


async def test_an_error_is_not_streamed(openai):
    def reply(messages, tools):
        raise ValueError("no such country")

    with chat_server(reply) as server:
        async with openai.AsyncOpenAI(base_url=server.url, api_key="none", max_retries=0) as client:
            with pytest.raises(openai.InternalServerError, match="no such country"):
                await client.chat.completions.create(model="m", messages=[], stream=True)
