"""The address of the gateway and the key of the session, by which an agent reaches its model."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from shlex import quote
from urllib.parse import urlsplit

from agentrl._util.loading import load_object
from agentrl.episode.gateway_config import is_address
from agentrl.errors import ConfigError
from agentrl.sandbox import Sandbox

SOCKET_INSIDE = "/run/agentrl-gateway.sock"
"""The path of the gateway's socket inside a sandbox."""
RESET_PATH = "/connection-was-reset"
"""Path of a request that reports a lost response: the client did not read the last response on its connection."""
RESET_NOTICE = f"POST {RESET_PATH} HTTP/1.1\r\nHost: gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_HERE = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """The address of an agent's model, which serves OpenAI's Chat Completions and Responses, Anthropic's Messages, and
    Google's Gemini API.

    The key belongs to one session. Every request with the key is part of this episode. A request without a key is
    refused.
    """

    key: str
    """The API key."""
    url: str
    """The base URL for Anthropic's and Google's clients: http://127.0.0.1:PORT, unless the run sets `gateway`."""
    socket: str
    """Path of a Unix socket on this machine at which the same server listens."""
    model: str = "agentrl"
    """A name for the model in requests. Any other name works, too."""

    @property
    def openai(self) -> str:
        """The base URL for OpenAI's clients: `url`/v1."""
        return f"{self.url}/v1"

    @property
    def sockets(self) -> Mapping[str, str]:
        """The value for `SandboxSpec(sockets=...)`, which makes the gateway's socket available to `inside`."""
        return {SOCKET_INSIDE: self.socket}

    def variables(self) -> dict[str, str]:
        """Environment variables by which most programs find the model. If the host is an IP address, they also bypass
        the machine's proxy."""
        host = urlsplit(self.url).hostname or _HERE
        existing = os.environ.get("NO_PROXY") or os.environ.get("no_proxy")
        unproxied = ",".join(filter(None, (existing, _HERE, host if is_address(host) and host != _HERE else "")))
        return {
            "OPENAI_BASE_URL": self.openai,
            "OPENAI_API_BASE": self.openai,
            "OPENAI_API_KEY": self.key,
            "ANTHROPIC_BASE_URL": self.url,
            "ANTHROPIC_AUTH_TOKEN": self.key,
            "GOOGLE_GEMINI_BASE_URL": self.url,
            "GEMINI_API_KEY": self.key,
            "NO_PROXY": unproxied,
            "no_proxy": unproxied,
        }

    async def inside(self, box: Sandbox, port: int = 8000) -> Endpoint:
        """Start a relay in a sandbox, and return the endpoint for programs in the sandbox: a port of its loopback
        interface.

        The sandbox's image needs python3. Raises ConfigError if the sandbox's spec lacks `sockets`, and SandboxError if
        the relay does not start.
        """
        seen = await box.exec(f"test -S {SOCKET_INSIDE} && echo mounted; test -S {quote(self.socket)} && echo here")
        if "mounted" in seen.stdout:
            relay = load_object("agentrl_sandbox.relay:relay")
            await relay(box, port, SOCKET_INSIDE, notice=RESET_NOTICE)
            return replace(self, url=f"http://{_HERE}:{port}")
        if "here" in seen.stdout:  # the back end `local`, whose commands run on this machine
            return self
        raise ConfigError(
            f"sandbox {box.sandbox_id} cannot reach the gateway: acquire it with SandboxSpec(sockets=endpoint.sockets)"
        )
