"""Bodies that a client has packed: read like plain ones, bounded, and refused with the remedy where they cannot be."""

from __future__ import annotations

import gzip
import json
import sys
import zlib

import aiohttp
import pytest

from agentrl.episode.gateway_config import GatewayConfig
from agentrl.gateway.serving import bodies, server
from agentrl.gateway.serving.server import Gateway
from tests.gateway.wires.fakes import FakeSession

PLAIN = json.dumps({"model": "m", "messages": [{"role": "user", "content": "Go. " * 100}]}).encode()


def raw_deflate(data):
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


PACKED = {
    "gzip": gzip.compress(PLAIN),
    "gzip in pieces": gzip.compress(PLAIN[:50]) + gzip.compress(PLAIN[50:]),
    "deflate": zlib.compress(PLAIN),
    "deflate, bare": raw_deflate(PLAIN),
    "identity": PLAIN,
}


async def post(gateway, body, coding):
    headers = {"Authorization": "Bearer key-1", "Content-Encoding": coding}
    async with (
        aiohttp.ClientSession(headers=headers) as http,
        http.post(f"{gateway.url}/v1/chat/completions", data=body) as answer,
    ):
        return answer.status, await answer.json()


@pytest.mark.parametrize("name", PACKED)
async def test_a_packed_body_is_read(gateway, session, name):
    status, _ = await post(gateway, PACKED[name], name.split(",")[0].split()[0])
    assert (status, session.request.entries[0].text) == (200, "Go. " * 100)


async def test_a_body_packed_with_zstd_is_read(gateway, session):
    zstd = pytest.importorskip(bodies.ZSTD, reason="zstd needs backports.zstd: pip install -e '.[zstd]'")
    for body in (zstd.compress(PLAIN), zstd.compress(PLAIN[:9]) + zstd.compress(PLAIN[9:])):
        assert (await post(gateway, body, "zstd"))[0] == 200
        assert session.request.entries[0].text == "Go. " * 100


async def test_zstd_without_its_package_is_refused_with_the_remedy(gateway, session, monkeypatch):
    monkeypatch.setitem(sys.modules, bodies.ZSTD, None)
    status, body = await post(gateway, b"\x28\xb5\x2f\xfd" + PLAIN, "zstd")
    assert status == 415
    assert "pip install 'agentrl-sdk[zstd]'" in body["error"]["message"]
    assert session.refused == [("POST /v1/chat/completions", 415, body["error"]["message"])]


@pytest.mark.parametrize(
    ("body", "coding", "status", "words"),
    [
        (PLAIN, "br", 415, "'br' is not served; send the body plain"),
        (PLAIN, "gzip, zstd", 415, "is not served"),
        (PLAIN, "gzip", 400, "the body is not gzip"),
        (PACKED["gzip"][:-9], "gzip", 400, "its end is missing"),
        (PACKED["deflate"][:-9], "deflate", 400, "its end is missing"),
    ],
    ids=["br", "two at once", "no gzip", "gzip cut short", "deflate cut short"],  # a packed body holds the time
)
async def test_what_cannot_be_unpacked_is_refused(gateway, session, body, coding, status, words):
    found, answer = await post(gateway, body, coding)
    assert (found, len(session.refused), words in answer["error"]["message"]) == (status, 1, True)


async def test_a_small_body_that_unpacks_to_a_long_one_is_refused(monkeypatch):
    monkeypatch.setattr(server, "BODY_BYTES", 10485)
    async with Gateway(GatewayConfig()) as gateway:
        gateway.add(FakeSession())
        status, body = await post(gateway, gzip.compress(b" " * 1_000_000), "gzip")
        assert status == 413
        assert "the body has more than 10485 bytes" in body["error"]["message"]
        assert (await post(gateway, PLAIN, ""))[0] == 200
