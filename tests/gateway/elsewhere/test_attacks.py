"""The gateway at an address that other machines reach, attacked from a network namespace of the test's own."""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
from pathlib import Path

import pytest
import trustme

from agentrl.episode import gateway_config
from agentrl.episode.gateway_config import GatewayConfig
from agentrl.gateway.serving import limits, server
from agentrl.gateway.serving.server import Gateway
from tests.gateway.elsewhere.namespace import namespace
from tests.gateway.wires.fakes import PLAIN, FakeSession

_SECRET = "what only the first session may see"
_STRANGER = Path(__file__).with_name("strangers.py")


@pytest.fixture(scope="module")
def elsewhere():
    with namespace() as made:
        yield made


@pytest.fixture(params=["https", "http"])
def config(request, elsewhere, tmp_path, monkeypatch):
    monkeypatch.setattr(server, "BODY_BYTES", 1 << 20)
    monkeypatch.setattr(gateway_config, "_REMOTE_RATE", 2.0)
    if request.param == "http":
        return GatewayConfig(host=elsewhere.here, public_url=f"http://{elsewhere.here}:{{port}}")
    authority = trustme.CA()
    pair = authority.issue_cert(elsewhere.here)
    pair.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "pair.pem"))
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    return GatewayConfig(host=elsewhere.here, certificate=str(tmp_path / "pair.pem"))


async def run(elsewhere, *argv):
    """What a program says that runs on the other machine."""
    command = elsewhere.command([sys.executable, "-I", *map(str, argv)])
    running = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    said, _ = await asyncio.wait_for(running.communicate(), 60)
    return json.loads(said)


@pytest.mark.thorough
async def test_a_stranger_on_another_machine(elsewhere, config, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(limits, "STRANGER_S", 0.3)
    first, own = FakeSession("sk-first-" + "a" * 32), FakeSession("sk-own-" + "b" * 32)
    for session in (first, own):
        session.answer = lambda request: [PLAIN] * request.n
    first.hold = asyncio.Event()
    async with Gateway(config) as gateway:
        gateway.add(first)
        gateway.add(own)
        ca = tmp_path / "ca.pem" if config.certificate else ""
        waiting = asyncio.create_task(_ask(gateway.url, first.key, str(ca)))
        await first.asked.wait()
        saw = await run(elsewhere, _STRANGER, gateway.url, own.key, ca)
        first.hold.set()
        assert "The end." in await waiting
    assert saw.pop("health") == [200, ""]
    assert saw.pop("no key") == [400] * 4
    assert saw.pop("no key, models") == 400
    assert saw.pop("wrong keys") == [400, 400, 400, 404, 400]  # the fourth has the key "..", and so another path
    status, words = saw.pop("unknown path")
    assert status == 404
    assert saw.pop("own")[0] == saw.pop("own, in the path") == 200
    assert saw.pop("large") == 413
    assert saw.pop("reset") == 200
    assert saw.pop("smuggled").count("HTTP/1.") == 1  # one answer, a refusal: nothing runs behind the request
    assert "HTTP/1.1 200" not in saw.pop("without TLS")
    assert saw.pop("closed without a request") == saw.pop("closed within a head") == 0
    burst = saw.pop("burst")
    assert burst[0] == 200
    assert burst.count(503) > 5
    assert saw.pop("loopback") is True
    assert not saw
    assert "Traceback" not in caplog.text  # strangers do not fill the log
    assert first.exchanges[0].told == ["delivered"]  # no stranger could have it sampled again, or ended
    assert len(first.exchanges) == 1
    assert [exchange.told for exchange in own.exchanges] == [["delivered"]] * 2
    assert first.key not in json.dumps(first.refused + own.refused) + words


async def _ask(url, key, ca):
    import aiohttp

    tls = ssl.create_default_context(cafile=ca) if ca else None
    body = {"model": "m", "messages": [{"role": "user", "content": _SECRET}]}
    headers = {"Authorization": f"Bearer {key}"}
    async with (
        aiohttp.ClientSession(headers=headers) as client,
        client.post(f"{url}/v1/chat/completions", json=body, ssl=tls if tls else True) as answer,
    ):
        return await answer.text()
