"""The server itself: who gets which answer, signs of life, clients that go away, and what is left behind."""

from __future__ import annotations

import asyncio
import os
import resource
import stat
from dataclasses import replace

import aiohttp
import openai
import pytest

from agentrl.chat.request import RefusedError
from agentrl.episode.gateway_config import GatewayConfig
from agentrl.gateway.serving import answering
from agentrl.gateway.serving.server import Gateway, loop_gateway
from tests.gateway.wires.fakes import PLAIN, FakeSession
from tests.gateway.wires.sockets import ASK, BODIES, asked, connected, read_until


async def told(exchange, *events):
    """Wait until the exchange has been told these, and nothing else."""
    async with asyncio.timeout(5):
        while len(exchange.told) < len(events):
            exchange.news.clear()
            await exchange.news.wait()
    assert exchange.told == list(events)


@pytest.mark.parametrize(
    ("path", "sign"),
    [
        ("/v1/messages", b'event: ping\ndata: {"type":"ping"}\n\n'),
        ("/v1/responses", b"event: response.in_progress\n"),
        ("/v1/chat/completions", b'"delta":{}'),
    ],
)
async def test_a_stream_shows_life_while_the_engine_runs(gateway, session, monkeypatch, path, sign):
    monkeypatch.setattr(answering, "PROGRESS_S", 0.01)
    session.hold = asyncio.Event()
    async with connected(gateway, path, stream=True) as plain:
        head = await read_until(plain, b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        assert b"text/event-stream" in head
        for _ in range(3):
            await read_until(plain, sign)
        session.hold.set()
        assert b"Hello." in await read_until(plain, b"\r\n0\r\n\r\n")
    assert session.exchanges[0].told == ["delivered"]


@pytest.mark.parametrize("path", list(BODIES))
async def test_an_answer_that_is_not_streamed_shows_life_too(gateway, session, monkeypatch, path):
    monkeypatch.setattr(answering, "SILENCE_S", 0.01)
    session.hold = asyncio.Event()
    async with connected(gateway, path) as plain:
        head = await read_until(plain, b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        assert b"application/json" in head
        for _ in range(3):
            await read_until(plain, b"1\r\n \r\n")
        assert session.exchanges[0].told == []
        session.hold.set()
        assert b"Hello." in await read_until(plain, b"\r\n0\r\n\r\n")
    await told(session.exchanges[0], "delivered")


async def test_sdks_read_an_answer_behind_signs_of_life(claude, gpt, session, monkeypatch):
    monkeypatch.setattr(answering, "SILENCE_S", 0.01)
    session.hold = asyncio.Event()
    asking = [
        asyncio.create_task(claude.messages.create(max_tokens=9, **ASK)),
        asyncio.create_task(gpt.chat.completions.create(**ASK)),
        asyncio.create_task(gpt.responses.create(model="m", input="Go.")),
    ]
    await asked(session, 3)
    await asyncio.sleep(0.05)
    session.hold.set()
    message, chat, response = await asyncio.gather(*asking)
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert chat.choices[0].message.content == "Hello."
    assert response.output_text == "Hello."


async def test_a_refusal_behind_signs_of_life_breaks_the_connection_and_is_told_on_the_next_try(
    gateway, session, gpt, monkeypatch
):
    monkeypatch.setattr(answering, "SILENCE_S", 0.01)
    session.hold, session.answer = asyncio.Event(), lambda _: RefusedError("closed", "this session has ended")
    asking = asyncio.create_task(gpt.chat.completions.create(**ASK))
    await asked(session)
    await asyncio.sleep(0.05)
    session.hold.set()
    with pytest.raises(openai.BadRequestError, match="this session has ended"):
        await asking
    assert len(session.exchanges) == 2


async def test_a_client_that_goes_between_signs_of_life(gateway, session, monkeypatch):
    monkeypatch.setattr(answering, "SILENCE_S", 0.01)
    session.hold = asyncio.Event()
    async with connected(gateway) as plain:
        await read_until(plain, b"1\r\n \r\n")
    await told(session.exchanges[0], "lost")


async def test_a_gateway_may_have_more_open_files_than_its_process_began_with(gateway):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    try:
        async with Gateway():
            assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(hard, 65_536)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_headers_wait_for_the_prompt_but_not_for_ever(gateway, session, monkeypatch):
    monkeypatch.setattr(answering, "ACCEPT_S", 0.01)
    rendering = asyncio.Event()
    session.answer = lambda _: RefusedError("unavailable", "the engine broke")

    class Slow(FakeSession):
        def ask(self, request):
            exchange = super().ask(request)
            exchange.accepted = rendering.wait
            return exchange

    slow = Slow("slow", session.answer)
    gateway.add(slow)
    async with connected(gateway, key="slow", stream=True) as plain:
        answer = await read_until(plain, b"\r\n0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200")
    assert b'"type":"server_error"' in answer
    assert b"the engine broke" in answer


async def test_a_client_that_goes_while_the_engine_runs(gateway, session):
    session.hold = asyncio.Event()
    for count, stream in enumerate((True, False), 1):
        async with connected(gateway, stream=stream):
            exchange = await asked(session, count)
        await told(exchange, "lost")


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_reads_half_of_a_long_answer(gateway, session, stream):
    session.answer = lambda _: [replace(PLAIN, content="word " * 2_000_000)]
    async with connected(gateway, stream=stream, receive_bytes=4096) as plain:
        await read_until(plain, b"word word")
    exchange = await asked(session)
    await told(exchange, "delivered", "lost")


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_goes_with_an_answer_unread(gateway, session, stream):
    """The kernel took all of it, so writing went well. The reset tells."""
    async with connected(gateway, stream=stream):
        exchange = await asked(session)
        await told(exchange, "delivered")
    await told(exchange, "delivered", "lost")


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_reads_all_and_goes(gateway, session, stream):
    async with connected(gateway, stream=stream) as plain:
        exchange = await asked(session)
        await read_until(plain, b"data: [DONE]\n\n\r\n0\r\n\r\n" if stream else b"}}}")
    async with connected(gateway, stream=True) as other:  # which the server answers after it has seen the first one go
        await read_until(other, b"[DONE]")
    assert exchange.told == ["delivered"]


async def test_256_sessions_at_once(gateway):
    """No word of one in another's answer."""

    def echo(name):
        def answer(request):
            assert [entry.text for entry in request.entries] == [f"ask of {name}"]
            return [replace(PLAIN, content=f"answer to {name}")]

        return answer

    sessions = [FakeSession(f"secret-{index}", echo(index), hold=asyncio.Event()) for index in range(256)]
    for one in sessions:
        gateway.add(one)

    async def ask(index):
        path = list(BODIES)[index % 3]
        body = BODIES[path] | {"stream": index % 2 == 0}
        body["input" if "responses" in path else "messages"] = [{"role": "user", "content": f"ask of {index}"}]
        headers = {"Authorization": f"Bearer secret-{index}"}
        async with client.post(f"{gateway.url}{path}", json=body, headers=headers) as answer:
            return await answer.text()

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client:
        asking = [asyncio.create_task(ask(index)) for index in range(256)]
        for one in sessions:
            await asked(one)
        for one in reversed(sessions):
            one.hold.set()
        texts = await asyncio.gather(*asking)
    for index, text in enumerate(texts):
        assert f'answer to {index}"' in text
        assert "answer to" not in text.replace(f'answer to {index}"', "")
    assert all(one.exchanges[0].told == ["delivered"] for one in sessions)


async def test_several_requests_of_one_connection(gateway, session):
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as client:
        for _ in range(3):
            async with client.post(
                f"{gateway.url}/s/{session.key}/v1/chat/completions", json=ASK | {"stream": True}
            ) as answer:
                assert (await answer.read()).endswith(b"data: [DONE]\n\n")
    assert [one.told for one in session.exchanges] == [["delivered"]] * 3


async def test_a_gateway_that_closes_says_so(session, gateway):
    session.hold = asyncio.Event()
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=session.key, max_retries=0) as client:
        asking = asyncio.create_task(client.chat.completions.create(model="m", messages=ASK["messages"]))
        await asked(session)
        await gateway.__aexit__()
        with pytest.raises(openai.InternalServerError, match="closing") as said:
            await asking
        assert said.value.status_code == 503


async def test_what_is_not_served(gateway, session):
    async with aiohttp.ClientSession(headers={"x-api-key": session.key}) as client:
        async with client.head(f"{gateway.url}/") as answer:
            assert answer.status == 200
        async with client.get(f"{gateway.url}/v1/messages") as answer:
            assert (answer.status, (await answer.json())["error"]["type"]) == (404, "not_found_error")
        async with client.post(f"{gateway.url}/v1/embeddings", json={}) as answer:
            assert (answer.status, "not served" in (await answer.json())["error"]["message"]) == (404, True)
        async with client.post(f"{gateway.url}/v1/responses", data=b"{") as answer:
            assert (answer.status, "not JSON" in (await answer.json())["error"]["message"]) == (400, True)
    assert session.exchanges == []


async def test_a_bug_in_a_session_harms_no_other(gateway, session, caplog):
    session.answer = lambda _: ZeroDivisionError("bug")
    async with aiohttp.ClientSession(headers={"x-api-key": session.key}) as client:
        async with client.post(f"{gateway.url}/v1/messages", json=BODIES["/v1/messages"]) as answer:
            assert (answer.status, (await answer.json())["error"]["type"]) == (500, "api_error")
        with pytest.raises(aiohttp.ClientError):
            async with client.post(f"{gateway.url}/v1/messages", json=ASK | {"stream": True}) as answer:
                await answer.read()
        session.answer = lambda _: [PLAIN]
        async with client.post(f"{gateway.url}/v1/messages", json=BODIES["/v1/messages"]) as answer:
            assert answer.status == 200
    assert "ZeroDivisionError" in caplog.text


async def test_a_client_that_asks_before_it_sends_its_body(gateway, session):
    async with (
        aiohttp.ClientSession(headers={"x-api-key": session.key}) as client,
        client.post(f"{gateway.url}/v1/messages", json=BODIES["/v1/messages"], expect100=True) as answer,
    ):
        assert answer.status == 200


async def test_a_key_in_a_path_is_not_logged(gateway, session, caplog):
    session.answer = lambda _: ZeroDivisionError("bug")
    async with (
        aiohttp.ClientSession() as client,
        client.post(f"{gateway.url}/s/{session.key}/v1/messages", json=BODIES["/v1/messages"]) as answer,
    ):
        assert answer.status == 500
    assert "bug" in caplog.text
    assert session.key not in caplog.text


async def test_the_socket_for_sandboxes(gateway, session):
    mode = os.stat(gateway.socket_path)
    assert stat.S_ISSOCK(mode.st_mode)
    assert stat.S_IMODE(mode.st_mode) == 0o666
    assert stat.S_IMODE(os.stat(gateway.socket_path.parent).st_mode) == 0o711
    connector = aiohttp.UnixConnector(str(gateway.socket_path))
    async with (
        aiohttp.ClientSession(connector=connector, headers={"x-api-key": session.key}) as client,
        client.post("http://sandbox/v1/messages", json=BODIES["/v1/messages"]) as answer,
    ):
        assert answer.status == 200


async def test_nothing_is_left_behind():
    before = asyncio.all_tasks(), set(os.listdir("/proc/self/fd"))
    gateway = Gateway()
    async with gateway:
        session = FakeSession(hold=asyncio.Event())
        gateway.add(session)
        async with connected(gateway, stream=True) as plain:
            await asked(session)
            await read_until(plain, b"data: ")
            await gateway.__aexit__()
    assert not gateway.socket_path.parent.exists()
    assert (asyncio.all_tasks(), set(os.listdir("/proc/self/fd"))) == before


def test_one_gateway_a_loop():
    async def use():
        first, second = await asyncio.gather(loop_gateway(), loop_gateway())
        assert first is second
        session = FakeSession()
        first.add(session)
        async with (
            aiohttp.ClientSession(headers={"x-api-key": session.key}) as client,
            client.get(f"{first.url}/v1/models") as answer,
        ):
            assert answer.status == 200
        return first

    one, other = asyncio.run(use()), asyncio.run(use())
    assert one is not other
    assert not any(gateway.socket_path.parent.exists() for gateway in (one, other))


async def test_a_taken_port():
    async with Gateway() as first:
        port = int(first.url.rpartition(":")[2])
        with pytest.raises(OSError, match="address already in use"):
            async with Gateway(GatewayConfig(port=port)):
                pass
