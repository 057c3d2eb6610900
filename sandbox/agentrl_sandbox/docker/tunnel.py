"""A local socket leading to an engine on a remote machine, through the system's ssh client.

One SSH connection forwards the engine's socket, so a run with hundreds of commands needs one login. Where the server
forwards no sockets, or the engine's socket is elsewhere, each connection is `ssh HOST docker system dial-stdio`, as in
Docker's own client.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shlex
import shutil
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import deque
from collections.abc import Coroutine
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from agentrl.errors import SandboxError
from agentrl_sandbox.docker import children

log = logging.getLogger("agentrl")

_OPEN_S = 30.0
"""Seconds for a login."""
_PING_S = 10.0
_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0
"""Seconds before a lost connection is made again, doubled each time."""
_LOGINS = 4
"""Logins at a time. An SSH server refuses some beyond 10 (MaxStartups)."""
_FIRST_S = 5.0
_PIECE = 256 << 10
_SOCKET = "/var/run/docker.sock"
_READY = b"agentrl-ready\n"
_HOLD = f"echo {_READY.decode().strip()}; exec cat"
"""The remote command of the connection. Command and connection end together."""
_OPTIONS = (
    "BatchMode=yes",
    "ExitOnForwardFailure=yes",
    "ServerAliveInterval=10",
    "ServerAliveCountMax=3",
    "ConnectTimeout=15",
    "ControlMaster=no",
    "ControlPath=none",
)


class SshTunnel:
    """The way to the engine of an address `ssh://USER@HOST:PORT/PATH`. The path of the socket is optional."""

    def __init__(self, address: str) -> None:
        self._address, parts = address, urlsplit(address)
        self._path = unquote(parts.path) if parts.path.strip("/") else ""
        user = ["-l", unquote(parts.username)] if parts.username else []
        port = ["-p", str(parts.port)] if parts.port else []
        options = [word for option in _OPTIONS for word in ("-o", option)]
        self._ssh = ["ssh", "-T", *options, *user, *port]
        self._host = parts.hostname or ""
        self._folder = tempfile.mkdtemp(prefix="agentrl-ssh-")  # for this user only
        self.socket = f"{self._folder}/engine.sock"
        self._errors: deque[str] = deque(maxlen=3)
        self._process: Process | None = None
        self._opened = False
        self._tasks = set[asyncio.Task[None]]()
        self._server: asyncio.Server | None = None
        self._logins = asyncio.Semaphore(_LOGINS)

    async def open(self) -> None:
        """Raises SandboxError, with ssh's message, if the host cannot be reached. Safe to call again."""
        if self._opened:
            return
        await self._connect()
        self._opened = True
        if await self._answers():
            self._begin(self._keep())
            return
        await self._end()
        _unlink(self.socket)
        log.info("%s: its socket is not forwarded; each connection is an SSH login of its own", self._address)
        self._server = await asyncio.start_unix_server(
            lambda reader, writer: self._begin(self._dial(reader, writer)), self.socket
        )

    async def close(self) -> None:
        """End the connection, and all traffic inside."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._end()
        shutil.rmtree(self._folder, ignore_errors=True)

    # One connection that forwards the socket

    async def _connect(self) -> None:
        _unlink(self.socket)
        forward = f"{self.socket}:{self._path or _SOCKET}"
        self._errors.clear()
        if shutil.which("ssh") is None:
            raise SandboxError(f"{self._address}: there is no program ssh; install the package openssh-client")
        self._process = process = await children.start(
            *self._ssh, "-L", forward, "--", self._host, _HOLD, stdout=PIPE, stderr=PIPE
        )
        self._begin(self._listen(process))
        ready = b""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_OPEN_S):
                while ready != _READY and (ready := await _read_line(process)):
                    continue
        if ready != _READY:
            await self._end()
            raise SandboxError(f"{self._address} cannot be reached: {' '.join(self._errors) or 'no answer in time'}")

    async def _answers(self) -> bool:
        """Whether an engine answers at the end of the forwarded socket."""
        try:
            async with asyncio.timeout(_PING_S):
                reader, writer = await asyncio.open_unix_connection(self.socket)
                try:
                    writer.write(b"GET /_ping HTTP/1.1\r\nHost: docker\r\nConnection: close\r\n\r\n")
                    return (await reader.readline()).startswith(b"HTTP/1.1 200")
                finally:
                    writer.close()
        except (OSError, TimeoutError):
            return False

    async def _keep(self) -> None:
        """Connect again whenever the connection is lost."""
        pause = _PAUSE_S
        while True:
            if self._process is not None:
                await self._process.wait()
                await self._end()
                log.warning(
                    "%s: the SSH connection ended: %s", self._address, " ".join(self._errors) or "no reason given"
                )
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
            with contextlib.suppress(SandboxError):
                await self._connect()
                pause = _PAUSE_S

    async def _listen(self, process: Process) -> None:
        """Remember the last lines of ssh's messages."""
        assert process.stderr is not None
        while line := await process.stderr.readline():
            if text := line.decode(errors="replace").strip():
                self._errors.append(text)

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await children.end(process)

    # A login for each connection

    async def _dial(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host_option = ["--host", f"unix://{shlex.quote(self._path)}"] if self._path else []
        command = " ".join(["docker", *host_option, "system", "dial-stdio"])
        async with self._logins:
            process = await asyncio.create_subprocess_exec(
                *self._ssh, "--", self._host, command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, start_new_session=True
            )
            assert process.stdin is not None
            assert process.stdout is not None
            sending = asyncio.create_task(_pump(reader, process.stdin))
            with contextlib.suppress(TimeoutError, OSError):
                async with asyncio.timeout(_FIRST_S):
                    writer.write(await process.stdout.read(_PIECE))
        try:
            await _pump(process.stdout, writer)
        finally:
            sending.cancel()
            writer.close()
            await children.end(process)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name="ssh tunnel")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Copy to the end, then close this direction only."""
    with contextlib.suppress(OSError):
        while piece := await source.read(_PIECE):
            target.write(piece)
            await target.drain()
        if target.can_write_eof():
            target.write_eof()


def _unlink(path: str) -> None:
    Path(path).unlink(missing_ok=True)


async def _read_line(process: Process) -> bytes:
    assert process.stdout is not None
    return await process.stdout.readline()
