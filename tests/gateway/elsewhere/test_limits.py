"""What one session may ask for, and what strangers may hold."""

from __future__ import annotations

import asyncio
import json
from contextlib import ExitStack

import aiohttp
import pytest

from agentrl.chat.request import RefusedError
from agentrl.episode.gateway_config import GatewayConfig
from agentrl.gateway.endpoint import RESET_PATH
from agentrl.gateway.serving import limits
from agentrl.gateway.serving.limits import SessionLimits
from agentrl.gateway.serving.server import Gateway
from tests.doubles.faulty_proxy import proxied
from tests.gateway.wires.conftest import gateway, session
from tests.gateway.wires.fakes import FakeSession
from tests.gateway.wires.sockets import asked, connected, read_until

__all__ = ["gateway", "session"]


def test_a_rate_allows_bursts_and_fills_again(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(limits.time, "monotonic", lambda: now[0])
    session = SessionLimits(2.0)

    def passes(count):
        for _ in range(count):
            with session.request():
                pass

    passes(6)
    with pytest.raises(RefusedError, match="more than 2 requests a second") as refused:
        passes(1)
    assert refused.value.status == 503
    now[0] += 1.0
    passes(2)
    with pytest.raises(RefusedError):
        passes(1)
    now[0] += 60.0
    passes(6)
    with pytest.raises(RefusedError):
        passes(1)


def test_open_requests_are_bounded_and_those_that_end_are_not_counted(monkeypatch):
    monkeypatch.setattr(limits, "OPEN_REQUESTS", 3)
    session = SessionLimits(100.0)
    with ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(session.request())
        with pytest.raises(RefusedError, match="has 3 open requests"), session.request():
            pass
    with session.request():
        pass


def test_without_a_rate_there_is_no_limit():
    with ExitStack() as stack:
        for _ in range(500):
            stack.enter_context(SessionLimits().request())


async def test_strangers_are_few_and_sessions_are_none(gateway, session, monkeypatch):
    monkeypatch.setattr(limits, "STRANGERS", 2)
    session.hold = asyncio.Event()
    async with connected(gateway), connected(gateway), connected(gateway):  # with a key: not counted
        await asked(session, 3)
        async with connected(gateway, key="wrong") as one, connected(gateway, key="wrong") as two:
            assert b"400" in await read_until(one, b"\r\n\r\n")
            assert b"400" in await read_until(two, b"\r\n\r\n")
            with pytest.raises((ConnectionError, AssertionError)):
                async with connected(gateway) as third:
                    await read_until(third, b"\r\n\r\n")
        await asyncio.sleep(0.1)
        session.hold.set()
        async with connected(gateway) as again:
            assert b"200" in await read_until(again, b"\r\n\r\n")


async def test_sessions_that_share_a_proxys_connection_cannot_end_each_others_answers():
    """A proxy may send the requests of two clients over one connection to the gateway."""
    first, second = FakeSession("sk-1"), FakeSession("sk-2")
    async with Gateway(GatewayConfig(public_url="https://agents.example.org/{port}")) as gateway:
        gateway.add(first)
        gateway.add(second)
        port = int(gateway.url.rpartition("/")[2])
        async with connected(_At(port), key="sk-1") as shared:
            await read_until(shared, b"}}}")
            head = f"POST {RESET_PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nx-api-key: sk-2\r\n\r\n"
            await asyncio.get_running_loop().sock_sendall(shared, head.encode())
            assert b"200" in await read_until(shared, b"\r\n\r\n")
    assert first.exchanges[0].told == ["delivered"]
    assert second.exchanges == []


class _At:
    def __init__(self, port):
        self.url = f"http://127.0.0.1:{port}"


async def test_behind_a_proxy_agents_get_its_address():
    session = FakeSession("sk-1")
    async with Gateway() as gateway, proxied(gateway.url) as proxy:
        config = GatewayConfig(port=int(gateway.url.rpartition(":")[2]), public_url=proxy.url)
        assert config.url(config.port) == proxy.url
        gateway.add(session)
        body = {"model": "m", "messages": [{"role": "user", "content": "Go."}], "stream": True}
        async with (
            aiohttp.ClientSession(headers={"Authorization": "Bearer sk-1"}) as client,
            client.post(f"{proxy.url}/v1/chat/completions", json=body) as answer,
        ):
            told = await answer.text()
            assert answer.headers["X-Accel-Buffering"] == "no"
    assert told.rstrip().endswith("data: [DONE]")
    assert json.loads(told.split("\n\n")[0].removeprefix("data: "))["object"] == "chat.completion.chunk"
