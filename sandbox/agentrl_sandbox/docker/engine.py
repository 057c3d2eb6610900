"""The connection to the engine: the address, and the translation of errors."""

from __future__ import annotations

import asyncio
import logging
import math
import socket
from collections.abc import Awaitable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from aiodocker import Docker, DockerError
from aiodocker.execs import Exec
from aiodocker.stream import Stream

from agentrl.errors import SandboxError, one_line
from agentrl_sandbox.docker.addresses import EngineAddress, engine_address
from agentrl_sandbox.docker.tunnel import DialTunnel, SshTunnel

log = logging.getLogger("agentrl")

_ANSWER_S = 120.0
"""Seconds that the engine has to respond. Creating a container is slow if many are created at once."""
_GREETING_S = 20.0
_NO_CONNECTION = 900
"""The status in errors of aiodocker if there is no HTTP response."""


@dataclass(slots=True)
class Host:
    """The machine of an engine."""

    cores: float
    memory_mb: int
    here: bool
    """Whether the engine runs on this machine."""
    quotas: bool = True
    """Whether the disk can limit a container's size. Assumed to be True until a container with a limit is created."""


class DockerClient:
    """A client of an engine, with version 1.41 of the API, which Docker supports since 2020."""

    def __init__(self, name: str = "") -> None:
        """`name` is an address or a context of Docker; see `engine_address`. Raises ConfigError."""
        parsed = engine_address(name)
        self.name, self.address, self.is_local = parsed.name, parsed.address, parsed.is_local
        self.gone = ""
        """Why requests to the engine are pointless now; empty otherwise. DockerHosts sets the text."""
        self._tunnel = _tunnel(parsed)
        self.url = f"unix://{self._tunnel.socket}" if self._tunnel else parsed.address
        """The URL by which programs of this machine reach the engine while the client is connected."""
        try:
            self.docker = Docker(
                self.url,
                timeout=aiohttp.ClientTimeout(total=_ANSWER_S),
                api_version="v1.41",
            )
        except (ValueError, AssertionError, OSError) as exc:
            raise SandboxError(f"{self.address}: {exc}; set DOCKER_HOST to the engine's address") from exc
        # Each running command holds a connection. At aiodocker's limit of 100, no connection would be left for a kill.
        self.docker.connector._limit = 0
        self.host = Host(math.inf, 0, here=True)

    async def connect(self) -> None:
        """Connect to the engine. Raises SandboxError, with the remedy, if no engine responds, or if the engine is
        podman, which does not enforce all limits of a sandbox."""
        if self._tunnel is not None:
            await self._tunnel.open()
        version = await self._greeted(self.docker.version())
        if any("podman" in part.get("Name", "").lower() for part in version.get("Components") or ()):
            raise SandboxError(
                f"the engine at {self.address} is podman, which does not enforce what a sandbox promises "
                "(tried with 4.3); set DOCKER_HOST to a Docker Engine, or take the back end bubblewrap"
            )
        info = await self._greeted(self.docker.system.info())
        here = self.is_local and info.get("Name") == socket.gethostname()
        self.host = Host(info.get("NCPU") or math.inf, (info.get("MemTotal") or 0) >> 20, here)

    async def create(self, body: dict[str, Any], name: str) -> None:
        """Create a container. If this engine's disk cannot limit the size of the root, there is no limit. Raises
        DockerError."""
        try:
            await self.docker.containers.create(body, name=name)
        except DockerError as exc:
            if not body["HostConfig"].get("StorageOpt") or "storage-opt" not in exc.message.lower():
                raise
            self.host.quotas = False
            body["HostConfig"]["StorageOpt"] = {}
            await self.docker.containers.create(body, name=name)

    async def ping(self, within_s: float) -> None:
        """Raises SandboxError if the engine does not respond within `within_s` seconds."""
        with self.telling("ping"):
            async with asyncio.timeout(within_s), self.docker._query("_ping") as response:
                await response.read()

    async def _greeted(self, question: Awaitable[Mapping[str, Any]]) -> Mapping[str, Any]:
        try:
            async with asyncio.timeout(_GREETING_S):
                return await question
        except (DockerError, OSError, aiohttp.ClientError) as exc:
            why = "" if isinstance(exc, DockerError) and exc.status == _NO_CONNECTION else f" ({_said(exc)})"
            raise SandboxError(
                f"no container engine answers at {self.address}{why}; start Docker, or set DOCKER_HOST to its socket"
            ) from exc

    async def close(self) -> None:
        await self.docker.close()
        await asyncio.sleep(0)  # the event loop closes the sockets in the next round
        if self._tunnel is not None:
            await self._tunnel.close()

    @contextmanager
    def telling(self, subject: str) -> Iterator[None]:
        """Within `with`, turn the engine's errors into SandboxErrors about `subject`."""
        try:
            yield
        except DockerError as exc:
            raise SandboxError(f"{subject}: {self._told(exc)}") from exc
        except TimeoutError as exc:
            raise SandboxError(f"{subject}: the engine at {self.address} did not answer in time") from exc
        except (aiohttp.ClientError, ConnectionError) as exc:
            raise SandboxError(f"{subject}: the engine at {self.address} went away: {_said(exc)}") from exc

    def _told(self, exc: DockerError) -> str:
        if exc.status == _NO_CONNECTION:
            return f"the engine at {self.address} went away"
        return " ".join(exc.message.split())


def _tunnel(engine: EngineAddress) -> DialTunnel | None:
    if engine.address.startswith("ssh://"):
        return SshTunnel(engine.address)
    if engine.tls:
        return DialTunnel(engine.address, ["docker", *engine.tls, "system", "dial-stdio"])
    if not engine.is_local and urlsplit(engine.address).hostname not in ("localhost", "127.0.0.1", "::1"):
        log.warning(
            "%s has no TLS: whoever reaches it owns that machine; use ssh://, or set DOCKER_TLS_VERIFY", engine.address
        )
    return None


def close_stdin(stream: Stream) -> None:
    """End the stdin of a running command. aiodocker itself can only close both directions."""
    connection = stream._resp.connection if stream._resp is not None else None
    if connection is not None and connection.transport is not None and not connection.transport.is_closing():
        connection.transport.write_eof()


async def hang_up(stream: Stream) -> None:
    """Close the connection of a command. Unread data would otherwise hold the connection open forever."""
    connection = stream._resp.connection if stream._resp is not None else None
    transport = connection.transport if connection is not None else None
    await stream.close()
    if transport is not None:
        transport.abort()


async def exit_code(command: Exec) -> int | None:
    """The exit code of a command. None if the command still runs."""
    state: dict[str, Any] = await command.inspect()
    return None if state["Running"] else int(state["ExitCode"] or 0)


def _said(exc: BaseException) -> str:
    return " ".join(str(exc).split()) or one_line(exc)
