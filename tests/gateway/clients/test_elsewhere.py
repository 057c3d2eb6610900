"""Clients on another machine: in a network namespace of the test's own, which sees the gateway's address and no other.

Their requests cross TLS with a certificate of the test's own authority.
"""

from __future__ import annotations

import os

import pytest
import trustme

from agentrl.episode.gateway_config import GatewayConfig
from agentrl_envs.agents.start import Start
from tests.gateway.clients import said
from tests.gateway.clients.playing import play
from tests.gateway.clients.said import Say, Script, odd
from tests.gateway.clients.starts import starter
from tests.gateway.elsewhere.namespace import namespace

pytestmark = pytest.mark.timeout(240)

_DONE = Say("All done.", (), "\nit is over\n")
CLIENTS = [
    ("claude-code", (), said.BASH, 1),
    ("codex", (), said.EXEC, 1),
    ("langgraph", ("chat", "stream"), said.SEARCH, 1),
    ("gemini-cli", (), said.GEMINI, 1),
    ("google-genai", ("stream",), said.SEARCH, 1),
    ("smolagents", ("tools", "whole"), said.SEARCH, 1),
]


@pytest.fixture(scope="module")
def elsewhere():
    with namespace() as made:
        yield made


@pytest.mark.parametrize(("client", "options", "shell", "segments"), CLIENTS, ids=[one[0] for one in CLIENTS])
async def test_a_session_over_tls(elsewhere, tmp_path, client, options, shell, segments):
    authority = trustme.CA()
    authority.issue_cert(elsewhere.here).private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "pair.pem"))
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    start = starter(client, *options)
    trusted = dict.fromkeys(("SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS"), str(tmp_path / "ca.pem"))

    def started(endpoint):
        assert endpoint.url.startswith(f"https://{elsewhere.here}:")
        made = start(endpoint)
        return Start(made.argv, {"PATH": os.environ["PATH"], **made.env, **trusted})

    turns = [*odd(shell, unknown=False)[:-1], _DONE]
    if client == "smolagents":  # it demands a call in each step
        turns = [Say("", (shell.run(f"{i}"),), "") for i in range(3)]
        turns.append(Say("", (("final_answer", '{"answer": "All done."}'),), ""))
    played = await play(
        Script(turns),
        started,
        through=elsewhere.command,
        config=GatewayConfig(host=elsewhere.here, certificate=str(tmp_path / "pair.pem")),
    )
    assert "All done." in played.output
    assert len(played.trajectory.segments) == segments
