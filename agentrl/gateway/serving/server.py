"""The gateway: many sessions at one address, each found by its key."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Protocol, Self

from aiohttp import web

from agentrl.chat.request import RefusedError, SessionHandler
from agentrl.episode.shared import loop_resources
from agentrl.gateway.serving.http import WireServer, keys

MODEL = "agentrl"
"""The name under which the model is listed. A request may use any name."""


class KeyedSession(SessionHandler, Protocol):
    """A session that a server finds by its key."""

    @property
    def key(self) -> str:
        """The key that a request must carry."""
        ...


class Gateway:
    """Serves sessions over three wires at a port of this machine, and at a Unix socket for sandboxes.

        async with Gateway() as gateway:
            gateway.add(session)  # a client reaches it at gateway.url, with the session's key

    Entering raises OSError if it cannot listen.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self._host = host
        self._port = port
        self._sessions: dict[str, SessionHandler] = {}

    async def __aenter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="agentrl-gateway-"))
        self._server = WireServer(self._session, MODEL)
        try:
            self._port = await self._server.listen(self._host, self._port)
            await self._server.listen_at(self.socket_path)
            # A sandbox mounts it as another user, for another user. Like the port, it refuses requests without a key.
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
        """Without a path: `http://127.0.0.1:PORT`. Clients of OpenAI's APIs need `/v1` after it."""
        return f"http://{self._host}:{self._port}"

    @property
    def socket_path(self) -> Path:
        """The Unix socket. Any user who can see it may connect."""
        return self._folder / "gateway.sock"

    def add(self, session: KeyedSession) -> None:
        """Serve a session from now on."""
        self._sessions[session.key] = session

    def remove(self, session: KeyedSession) -> None:
        """End a session: from now on its key is refused with 400."""
        self._sessions.pop(session.key, None)

    def _session(self, key: str, request: web.BaseRequest) -> SessionHandler:
        """Raises RefusedError with status 400 for an unknown key, because all clients stop on that status alone."""
        for given in keys(key, request):
            if given in self._sessions:
                return self._sessions[given]
        raise RefusedError(
            "closed",
            "no session has this key: it has ended, or the key is not the one of its endpoint (as Bearer token, as "
            "x-api-key or in /s/KEY/v1)",
        )


async def loop_gateway() -> Gateway:
    """The one gateway of the running event loop. It starts on first use, and closes with the loop.

    Raises OSError if it cannot listen.
    """
    return await loop_resources().entered("gateway", Gateway)
