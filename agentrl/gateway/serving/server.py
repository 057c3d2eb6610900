"""The gateway: many sessions at the same address. The key of a request selects the session."""

from __future__ import annotations

import logging
import resource
import shutil
import ssl
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Protocol, Self

from aiohttp import web

from agentrl.chat.request import RefusedError, SessionHandler
from agentrl.episode.gateway_config import GatewayConfig
from agentrl.episode.shared import loop_resources
from agentrl.errors import ConfigError
from agentrl.gateway.serving.bodies import BODY_BYTES
from agentrl.gateway.serving.http import LimitedSession, WireServer, keys
from agentrl.gateway.serving.limits import SessionLimits

log = logging.getLogger("agentrl")

MODEL = "agentrl"
"""The name in the list of models. A request may use any name."""
_FILES = 65_536
"""Number of open files that is enough for thousands of agents. Each agent needs a connection to the gateway and a
connection to the engine."""


class KeyedSession(SessionHandler, Protocol):
    """A session with a key."""

    @property
    def key(self) -> str:
        """The key of the session's requests."""
        ...


class Gateway:
    """Serves sessions in the vendors' API formats at a port, and at a Unix socket for sandboxes on this machine.

        async with Gateway() as gateway:
            gateway.add(session)  # a client reaches it at gateway.url, with the session's key

    Entering raises OSError if the port is taken, and ConfigError for an unusable certificate.
    """

    def __init__(self, config: GatewayConfig | None = None) -> None:
        self._config = config or GatewayConfig()
        self._port = self._config.port
        self._sessions: dict[str, LimitedSession] = {}

    async def __aenter__(self) -> Self:
        tls = _tls(self._config)
        _allow_files()
        self._folder = Path(tempfile.mkdtemp(prefix="agentrl-gateway-"))
        self._server = WireServer(self._session, MODEL, body_bytes=BODY_BYTES)
        try:
            self._port = await self._server.listen(self._config.host, self._config.port, tls)
            if warning := self._config.warning(self._port):
                log.warning("%s", warning)
            await self._server.listen_at(self.socket_path)
            # A sandbox mounts the socket as another user. Like the port, the socket refuses requests without a key.
            self._folder.chmod(0o711)
            self.socket_path.chmod(0o666)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def url(self) -> str:
        """The base URL for agents: `http://127.0.0.1:PORT`. Clients of OpenAI's APIs need `/v1` after the port."""
        return self._config.url(self._port)

    @property
    def socket_path(self) -> Path:
        """Path of the Unix socket. Any user who can see the socket may connect."""
        return self._folder / "gateway.sock"

    def add(self, session: KeyedSession) -> None:
        """Serve a session under its key."""
        self._sessions[session.key] = (session, SessionLimits(self._config.rate))

    def remove(self, session: KeyedSession) -> None:
        """Stop serving a session: requests with its key get status 400."""
        self._sessions.pop(session.key, None)

    def _session(self, key: str, request: web.BaseRequest) -> LimitedSession:
        """The session of a key. Raises RefusedError with status 400 for an unknown key, because all clients stop on
        400."""
        for candidate in keys(key, request):
            if candidate in self._sessions:
                return self._sessions[candidate]
        raise RefusedError(
            "closed",
            "no session has this key: it has ended, or the key is not the one of its endpoint (as Bearer token, as "
            "x-api-key or in /s/KEY/v1)",
        )


async def loop_gateway(config: GatewayConfig | None = None) -> Gateway:
    """The gateway of the running event loop for a configuration. The gateway starts on first use, and closes with the
    loop.

    Raises ConfigError if the gateway cannot listen, or for an unusable certificate.
    """
    config = config or GatewayConfig()
    try:
        return await loop_resources().entered(("gateway", config), lambda: Gateway(config))
    except OSError as exc:
        raise ConfigError(
            f"the gateway cannot listen at {config.host}:{config.port} ({exc}); choose another gateway.host or "
            "gateway.port, and port 0 with workers"
        ) from exc


def _allow_files() -> None:
    """Raise this process's soft limit of open files, usually 1,024, up to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _tls(config: GatewayConfig) -> ssl.SSLContext | None:
    """The TLS context with the gateway's certificate. None for plain HTTP. Raises ConfigError for unusable files."""
    if config.certificate is None:
        return None
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        tls.load_cert_chain(config.certificate, config.private_key)
    except (OSError, ssl.SSLError) as exc:
        raise ConfigError(
            f"gateway.certificate {config.certificate} and its key cannot be used ({exc}); give PEM files of one pair"
        ) from exc
    return tls
