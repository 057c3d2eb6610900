"""A local socket that leads to an engine on another machine, through the ssh client or Docker's client.

A single SSH connection forwards the engine's socket, so a run with hundreds of commands needs a single login. If the
server forwards no sockets, or the engine's socket has an unusual path, each connection is `ssh HOST docker system
dial-stdio`, as in Docker's own client. With TLS, each connection is `docker system dial-stdio`: the end of a command's
stdin must close a single direction of the connection, and asyncio's TLS can only close both.
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
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from agentrl.errors import SandboxError
from agentrl_sandbox.docker import children

log = logging.getLogger("agentrl")

_OPEN_S = 30.0
"""The most seconds for a login."""
_PING_S = 10.0
_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0
"""Seconds before a lost connection is opened again: the first pause, which doubles each time, and the longest pause."""
_LOGINS = 4
"""The most logins at the same time. By default, an SSH server refuses some logins beyond 10 (MaxStartups)."""
_FIRST_S = 5.0
_PIECE, _SAID = 256 << 10, 400
_SOCKET = "/var/run/docker.sock"
_PING = b"GET /_ping HTTP/1.1\r\nHost: docker\r\nConnection: close\r\n\r\n"
_OK = b"HTTP/1.1 200"
_READY = b"agentrl-ready\n"
_HOLD = f"echo {_READY.decode().strip()}; exec cat"
"""The remote command of the SSH connection. The command ends when the connection ends, and the other way round."""
_OPTIONS = (
    "BatchMode=yes",
    "ExitOnForwardFailure=yes",
    "ServerAliveInterval=10",
    "ServerAliveCountMax=3",
    "ConnectTimeout=15",
    "ControlMaster=no",
    "ControlPath=none",
)


class DialTunnel:
    """A tunnel in which each connection to the local socket starts a program, whose stdin and stdout lead to the
    engine."""

    def __init__(self, address: str, command: Sequence[str], at_a_time: int = 64) -> None:
        """`at_a_time` is the most programs that may be connecting at the same time."""
        self._address, self._command = address, command
        self._folder = tempfile.mkdtemp(prefix="agentrl-engine-")  # for this user only
        self.socket = f"{self._folder}/engine.sock"
        self._tasks = set[asyncio.Task[None]]()
        self._server: asyncio.Server | None = None
        self._connecting = asyncio.Semaphore(at_a_time)
        self._closed = False

    async def open(self) -> None:
        """Open the local socket. Raises SandboxError, with the program's message, if no engine responds. Safe to call
        again."""
        if self._server is None:
            await self._ask()
            self._server = await asyncio.start_unix_server(self._accept, self.socket)

    async def close(self) -> None:
        """Close the local socket and all connections. What the tunnel has not sent yet is lost."""
        self._closed = True
        if self._server is not None:
            for listening in self._server.sockets:  # asyncio loses a connection that it accepts just before `close`
                asyncio.get_running_loop().remove_reader(listening)
            await asyncio.sleep(0)
            self._server.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await asyncio.sleep(0)  # a transport closes its socket in the next turn of the loop
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _ask(self) -> None:
        process, line, message = await self._start(PIPE), b"", b""
        assert process.stdin is not None
        assert process.stderr is not None
        try:
            process.stdin.write(_PING)
            with contextlib.suppress(TimeoutError, OSError):
                async with asyncio.timeout(_OPEN_S):
                    line = await _read_line(process)
                    if not line:
                        message = await process.stderr.read()  # comes after the end of stdout
        finally:
            await children.end(process)
        if not line.startswith(_OK):
            why = " ".join(message.decode(errors="replace").split())
            raise SandboxError(f"{self._address} cannot be reached: {why[-_SAID:] or 'no answer in time'}")

    async def _start(self, stderr: int) -> Process:
        if shutil.which(self._command[0]) is None:
            raise SandboxError(f"{self._address}: there is no program {self._command[0]}; install its package")
        return await asyncio.create_subprocess_exec(
            *self._command, stdin=PIPE, stdout=PIPE, stderr=stderr, start_new_session=True
        )

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._closed:  # the connection was accepted just before the socket was closed
            writer.transport.abort()
            return
        task = self._begin(self._dial(reader, writer))
        # Not in `_dial`: a task that is cancelled early never starts.
        task.add_done_callback(lambda task: writer.transport.abort() if task.cancelled() else writer.close())

    async def _dial(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with contextlib.AsyncExitStack() as stack:
            async with self._connecting:
                process = await self._start(DEVNULL)
                stack.push_async_callback(children.end, process)
                assert process.stdin is not None
                assert process.stdout is not None
                sending = asyncio.create_task(_pump(reader, process.stdin))
                stack.callback(sending.cancel)
                with contextlib.suppress(TimeoutError, OSError):
                    async with asyncio.timeout(_FIRST_S):
                        writer.write(await process.stdout.read(_PIECE))
            await _pump(process.stdout, writer)

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name="engine tunnel")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


class SshTunnel(DialTunnel):
    """A tunnel to the engine of an address `ssh://USER@HOST:PORT/PATH`. The path of the engine's socket is optional."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        self._path = unquote(parts.path) if parts.path.strip("/") else ""
        user = ["-l", unquote(parts.username)] if parts.username else []
        port = ["-p", str(parts.port)] if parts.port else []
        options = [word for option in _OPTIONS for word in ("-o", option)]
        self._ssh, self._host = ["ssh", "-T", *options, *user, *port], parts.hostname or ""
        socket = f"--host unix://{shlex.quote(self._path)} " if self._path else ""
        super().__init__(address, [*self._ssh, "--", self._host, f"docker {socket}system dial-stdio"], _LOGINS)
        self._errors: deque[str] = deque(maxlen=3)
        self._process: Process | None = None
        self._opened = False

    async def open(self) -> None:
        """Connect to the host. Raises SandboxError, with ssh's message, if this fails. Safe to call again."""
        if self._opened:
            return
        await self._connect()
        if await self._answers():
            self._begin(self._keep())
        else:
            await self._end()
            _unlink(self.socket)
            log.info("%s: its socket is not forwarded; each connection is an SSH login of its own", self._address)
            await super().open()
        self._opened = True

    async def close(self) -> None:
        """See `DialTunnel.close`."""
        await super().close()
        await self._end()

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
        """Whether an engine responds through the forwarded socket."""
        try:
            async with asyncio.timeout(_PING_S):
                reader, writer = await asyncio.open_unix_connection(self.socket)
                try:
                    writer.write(_PING)
                    return (await reader.readline()).startswith(_OK)
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


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Copy data until `source` ends, then close only this direction of the connection."""
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
