"""The gateway: many sessions behind one address, each known by its key."""

from __future__ import annotations

import asyncio
import atexit
import logging
import shutil
import tempfile
from pathlib import Path
from typing import Protocol, Self

from aiohttp import web

from agentrl.gateway.request import Asked, RefusedError
from agentrl.gateway.serving.http import CLOSE_S, WireServer, keys

_log = logging.getLogger(__name__)

MODEL = "agentrl"
"""The name under which the model is listed. A request may name any."""


class Keyed(Asked, Protocol):
    """A session that a server finds by its key."""

    @property
    def key(self) -> str:
        """What a request must bring."""
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
        self._sessions: dict[str, Asked] = {}

    async def __aenter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="agentrl-gateway-"))
        self._server = WireServer(self._session, MODEL)
        try:
            self._port = await self._server.listen(self._host, self._port)
            await self._server.listen_at(self.socket_path)
            # A sandbox mounts it for a user of its own, and as one. Like the port, it answers nobody without a key.
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
        """Without a path: `http://127.0.0.1:PORT`. Clients of OpenAI's APIs need `/v1` behind it."""
        return f"http://{self._host}:{self._port}"

    @property
    def socket_path(self) -> Path:
        """The Unix socket. Any user may connect who can see it."""
        return self._folder / "gateway.sock"

    def add(self, session: Keyed) -> None:
        """Serve a session from now on."""
        self._sessions[session.key] = session

    def remove(self, session: Keyed) -> None:
        """End a session: from now on its key is refused with 400."""
        self._sessions.pop(session.key, None)

    def _session(self, key: str, request: web.BaseRequest) -> Asked:
        """Raises RefusedError with status 400 for an unknown key: it is the only one on which all clients end."""
        for given in keys(key, request):
            if given in self._sessions:
                return self._sessions[given]
        raise RefusedError(
            "closed",
            "no session has this key: it has ended, or the key is not the one of its endpoint (as Bearer token, as "
            "x-api-key or in /s/KEY/v1)",
        )


_gateways: dict[asyncio.AbstractEventLoop, asyncio.Task[None]] = {}
_ready: dict[asyncio.AbstractEventLoop, asyncio.Future[Gateway]] = {}


async def loop_gateway() -> Gateway:
    """The one gateway of the running event loop. It starts on first use, and closes with the loop.

    Raises OSError if it cannot listen.
    """
    loop = asyncio.get_running_loop()
    if loop not in _ready:
        _ready[loop] = loop.create_future()
        _gateways[loop] = loop.create_task(_keep(_ready[loop]), name="agentrl gateway")
    return await asyncio.shield(_ready[loop])


async def _keep(ready: asyncio.Future[Gateway]) -> None:
    """Serve until the loop ends. A loop cancels its tasks then: it is the only stop hook."""
    loop = asyncio.get_running_loop()
    try:
        async with Gateway() as gateway:
            ready.set_result(gateway)
            await asyncio.Event().wait()
    except OSError as exc:
        ready.set_exception(exc)
    finally:
        del _ready[loop], _gateways[loop]


@atexit.register
def _close_running_loops() -> None:
    """Close the gateways of loops in daemon threads, which are never shut down."""
    for loop, task in list(_gateways.items()):
        if loop.is_running():
            try:
                asyncio.run_coroutine_threadsafe(_end(task), loop).result(2 * CLOSE_S)
            except Exception:  # noqa: BLE001 - the end of the process: the other loops must be closed too
                _log.warning("closing a gateway failed", exc_info=True)


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait((task,))
