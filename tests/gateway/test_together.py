# ruff: noqa: ASYNC110 - what is waited for is on the other side of a socket
"""Many agents that begin together: half of them go wrong, the others get their replies, and nothing is left behind."""

from __future__ import annotations

import asyncio
import json
import random
import threading

import pytest

from agentrl.gateway.serving.server import Gateway
from agentrl.gateway.session.openings import openings
from agentrl.gateway.session.sampling import Sampler
from tests.gateway.client import FIND, Talk

AGENTS = 48
KINDS = ("streams", "waits", "leaves", "is cancelled", "sends half", "sends rubbish", "streams", "leaves in the middle")
EXPECTED = {
    "streams": (b"HTTP/1.1 200", b"It is Paris."),
    "waits": (b"HTTP/1.1 200", b"It is Paris."),
    "sends rubbish": (b"HTTP/1.1 400", b"not JSON"),
    "is cancelled": (b"HTTP/1.1", b"its episode was cancelled"),
}
WORDS = "The quick brown foxes jump over the lazy dogs. " * 800


def request(number, kind):
    body = {
        "model": "m",
        "messages": [{"role": "system", "content": WORDS}, {"role": "user", "content": f"Task {number // 16}."}],
        "tools": [FIND],
        "stream": kind not in ("waits", "leaves"),
    }
    raw = json.dumps(body).encode()
    if kind == "sends rubbish":
        raw = raw[:50] + random.Random(number).randbytes(len(raw) - 50)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer key-{number}\r\n"
    whole = f"{head}Connection: close\r\nContent-Length: {len(raw)}\r\n\r\n".encode() + raw
    return whole[: len(whole) // 2] if kind == "sends half" else whole


async def agent(gateway, number, kind, middle):
    """What the agent reads until its end. It leaves early if that is its kind."""
    host, port = gateway.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(request(number, kind))
    try:
        if kind in ("leaves", "sends half"):
            return b""
        if kind == "leaves in the middle":
            await middle.wait()
            return b""
        return await reader.read()
    finally:
        writer.transport.abort()


@pytest.fixture
def rendering(monkeypatch):
    """Prompts are written when this is set; how often, is counted."""
    go, write, seen = threading.Event(), Sampler.write, list[None]()

    def waiting(self, *given):
        assert go.wait(20)
        seen.append(None)
        return write(self, *given)

    monkeypatch.setattr(Sampler, "write", waiting)
    go.seen = seen
    yield go
    go.set()


async def test_half_of_the_agents_go_wrong(renderer, rendering):
    before = asyncio.all_tasks()
    kinds = [KINDS[number % len(KINDS)] for number in range(AGENTS)]
    talks = [Talk(renderer, ["It is Paris."]) for _ in kinds]
    async with Gateway() as gateway:
        answers = await played(gateway, talks, kinds, rendering)
        await settled(gateway)
        assert not openings().rendering
        for talk in talks:
            gateway.remove(talk.session)
        assert not gateway._sessions
    for kind, talk, answer in zip(kinds, talks, answers, strict=True):
        begins, holds = EXPECTED.get(kind, (b"", b""))
        assert answer.startswith(begins), answer
        assert holds in answer
        ledger, stays = talk.end().ledger, kind in ("streams", "waits")
        assert ledger.trained == (ledger.sampled if stays else 0)
        assert ledger.sampled > 0 or not stays
    assert len(rendering.seen) == AGENTS // 16, "each group's prompt is written once"
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


async def played(gateway, talks, kinds, rendering):
    """What the agents read. All requests come before a prompt is written; then some leave, and the engine answers."""
    middle = asyncio.Event()
    for number, talk in enumerate(talks):
        talk.session.key = f"key-{number}"
        talk.engine.gate.clear()
        gateway.add(talk.session)
    asking = [asyncio.create_task(agent(gateway, number, kind, middle)) for number, kind in enumerate(kinds)]
    each = list(zip(kinds, talks, strict=True))
    whole = [talk for kind, talk in each if kind not in ("leaves", "sends half", "sends rubbish")]
    async with asyncio.timeout(30):
        while not all(talk.events("request") for talk in whole):
            await asyncio.sleep(0.01)
        for talk in [talk for kind, talk in each if kind == "is cancelled"]:
            talk.session.close("its episode was cancelled")
            gateway.remove(talk.session)
        rendering.set()
        while not all(talk.engine.params for kind, talk in each if kind == "streams"):
            await asyncio.sleep(0.01)
        middle.set()
        for talk in talks:
            talk.engine.gate.set()
        return await asyncio.gather(*asking)


async def settled(gateway):
    """Wait until the server has seen each connection end."""
    server = gateway._server
    async with asyncio.timeout(5):
        while server._strangers._timers or server._last:
            await asyncio.sleep(0.01)
