"""Where a gateway listens, what agents are told, and what is refused before an agent starts."""

from __future__ import annotations

import os

import pytest
import trustme
from pydantic import ValidationError

from agentrl import Endpoint
from agentrl.episode.config import EpisodeConfig
from agentrl.episode.gateway_config import GatewayConfig
from agentrl.errors import ConfigError
from agentrl.gateway.serving.server import Gateway, loop_gateway


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"host": ""}, "write 0.0.0.0 if that is meant"),
        ({"host": "10.1.2.3"}, "keys would cross the network in clear text"),
        ({"host": "gpu-7.example.org"}, "keys would cross the network in clear text"),
        ({"host": "::", "certificate": "c.pem"}, "no agent can connect to ::"),
        ({"host": "0.0.0.0", "certificate": "c.pem"}, "give the public_url"),
        ({"private_key": "k.pem"}, "private_key needs the certificate"),
        ({"public_url": "https://agents.example.org"}, "needs a fixed port, or {port} in it"),
        ({"port": 1, "public_url": "agents.example.org"}, "is no base URL"),
        ({"port": 1, "public_url": "https://me:secret@agents.example.org"}, "is no base URL"),
        ({"port": 1, "public_url": "https://agents.example.org?a=1"}, "is no base URL"),
        ({"port": 70000}, "less than or equal to 65535"),
        ({"hosts": "x"}, "hosts"),
    ],
)
def test_what_no_agent_could_use_is_refused(given, words):
    with pytest.raises(ValidationError, match=words.replace("{", r"\{").replace("?", r"\?")):
        GatewayConfig.model_validate(given)
    with pytest.raises(ConfigError, match="gateway"):
        EpisodeConfig.parse("run.yaml", {"gateway": given})


@pytest.mark.parametrize(
    ("given", "url", "warned", "rate"),
    [
        ({}, "http://127.0.0.1:80", False, None),
        ({"host": "localhost"}, "http://localhost:80", False, None),
        ({"host": "::1"}, "http://[::1]:80", False, None),
        ({"host": "10.1.2.3", "certificate": "c.pem"}, "https://10.1.2.3:80", False, 20),
        ({"host": "10.1.2.3", "public_url": "http://10.1.2.3:{port}/"}, "http://10.1.2.3:80", True, 20),
        ({"port": 80, "public_url": "https://agents.example.org/x/"}, "https://agents.example.org/x", False, 20),
        ({"host": "0.0.0.0", "public_url": "https://h:{port}"}, "https://h:80", False, 20),
    ],
)
def test_what_agents_are_told(given, url, warned, rate):
    config = GatewayConfig.model_validate(given)
    assert (config.url(80), config.warning(80) is not None, config.rate) == (url, warned, rate)


def test_every_trainer_hands_it_to_its_episodes():
    config = EpisodeConfig.parse("run.yaml", {"gateway": {"port": 8443, "public_url": "https://agents.example.org"}})
    assert config.options().gateway.url(8443) == "https://agents.example.org"


async def test_files_that_are_no_certificate(tmp_path):
    one, other = trustme.CA().issue_cert("10.1.2.3"), trustme.CA().issue_cert("10.1.2.3")
    (tmp_path / "text.pem").write_text("no certificate")
    one.cert_chain_pems[0].write_to_path(str(tmp_path / "one.pem"))
    other.private_key_pem.write_to_path(str(tmp_path / "other.pem"))
    wrong = [("missing.pem", None), ("text.pem", None), ("one.pem", None), ("one.pem", "other.pem")]
    for certificate, key in wrong:
        paths = {"certificate": str(tmp_path / certificate), "private_key": str(tmp_path / key) if key else None}
        before = set(os.listdir("/proc/self/fd"))
        with pytest.raises(ConfigError, match=f"{certificate} and its key cannot be used"):
            async with Gateway(GatewayConfig(**paths)):
                pass
        assert set(os.listdir("/proc/self/fd")) == before


async def test_a_taken_port_ends_the_run_with_the_remedy():
    async with Gateway() as other:
        port = int(other.url.rpartition(":")[2])
        with pytest.raises(ConfigError, match=f"cannot listen at 127.0.0.1:{port}.*port 0 with workers"):
            await loop_gateway(GatewayConfig(port=port))


async def test_others_on_the_way_are_warned_of(caplog):
    async with Gateway(GatewayConfig(public_url="http://agents.example.org:{port}")):
        assert "without TLS: whoever is on the way reads keys" in caplog.text


def test_an_address_is_reached_past_the_machines_proxy(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "internal")
    for url, unproxied in (
        ("https://10.1.2.3:1", "internal,127.0.0.1,10.1.2.3"),
        ("https://agents.example.org", "internal,127.0.0.1"),
        ("http://127.0.0.1:1", "internal,127.0.0.1"),
    ):
        assert Endpoint(key="k", url=url, socket="s").variables()["NO_PROXY"] == unproxied
