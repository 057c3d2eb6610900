"""Connect a sandbox to the proxy: a program opens a listening socket in the sandbox, and sends it to this process.

A socket belongs to the network namespace in which it was created, whichever process has it. So PROGRAM enters the
namespace for a moment, listens at the sandbox's loopback interface, and sends the socket out through a Unix socket. No
program, device, route or name service stays in the sandbox. When this process ends, for any reason, the socket closes
too.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from agentrl.errors import SandboxError

_WITHIN_S, _MOMENT_S = 60.0, 1.0

PORT = 3128
"""The port of the proxy at the sandbox's loopback interface."""

PROGRAM = """
import ctypes, os, socket, sys

def enter(box, namespaces, uid):
    if uid >= 0:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall({"x86_64": 308, "aarch64": 268}[os.uname().machine], box, namespaces):
        raise OSError(ctypes.get_errno(), "setns")

path, port, *place = sys.argv[1:]
with socket.socket(socket.AF_UNIX) as out:
    out.connect(path)
    if place:
        enter(*map(int, place))
    with socket.create_server(("127.0.0.1", int(port)), backlog=128) as listener:
        socket.send_fds(out, [b"."], [listener.fileno()])
"""
"""Python code that opens the listening socket. Arguments: the path of a Unix socket, and a port. To enter a sandbox,
also: a pidfd, the flags of the namespaces, and a user id."""

NAMES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


def variables(network: str | tuple[str, ...]) -> dict[str, str]:
    """The environment variables that point programs in a sandbox to the proxy. Empty without a list of hosts."""
    if isinstance(network, str):
        return {}
    proxy = f"http://127.0.0.1:{PORT}"
    upper = dict(zip(NAMES, (proxy, proxy, "localhost,127.0.0.1,::1"), strict=True))
    return upper | {name.lower(): value for name, value in upper.items()} | {"NODE_USE_ENV_PROXY": "1"}


class Handover:
    """Receives the listening socket from the program."""

    def __init__(self, path: str, server: socket.socket) -> None:
        self.path = path
        """The path of the Unix socket to which the program connects."""
        self._server = server
        self._listener: socket.socket | None = None

    async def listener(self, ended: Awaitable[str]) -> socket.socket:
        """The listening socket from the program. `ended` waits for the end of the program and returns its output.
        Raises SandboxError with this output if no socket, or a wrong socket, arrived."""
        handed, ending = asyncio.create_task(self._handed()), asyncio.ensure_future(ended)
        try:
            await asyncio.wait([handed, ending], timeout=_WITHIN_S, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait([handed], timeout=_MOMENT_S)  # the program may have ended after sending the socket
            if handed.done():
                return handed.result()
            output = ending.result() if ending.done() else f"it did not answer within {_WITHIN_S:g} s"
            raise SandboxError(f"no way to the sandbox's proxy could be made: {' '.join(output.split())[-400:]}")
        finally:
            handed.cancel()
            ending.cancel()
            await asyncio.gather(handed, ending, return_exceptions=True)

    async def _handed(self) -> socket.socket:
        loop = asyncio.get_running_loop()
        link, _ = await loop.sock_accept(self._server)
        with link:
            link.setblocking(False)
            await _readable(link)
            self._listener = _checked(socket.recv_fds(link, 1, 1, socket.MSG_CMSG_CLOEXEC)[1])
            return self._listener

    def abandon(self) -> None:
        """Close a received socket, after the caller was cancelled or failed."""
        if self._listener is not None:
            self._listener.close()


@asynccontextmanager
async def handover() -> AsyncIterator[Handover]:
    """A Handover with a Unix socket for the program, in a folder that other users of this machine cannot enter.

    If the block ends with an error, the listening socket is closed.
    """
    with tempfile.TemporaryDirectory(prefix="agentrl-") as folder, socket.socket(socket.AF_UNIX) as server:
        path = str(Path(folder, "s"))
        try:
            server.bind(path)
        except OSError as exc:
            raise SandboxError(f"no socket can be made at {path}: {exc.strerror or exc}; set TMPDIR") from exc
        os.chmod(path, 0o666)
        server.listen()
        server.setblocking(False)
        way = Handover(path, server)
        try:
            yield way
        except BaseException:
            way.abandon()
            raise


def _checked(files: Sequence[int]) -> socket.socket:
    if not files:
        raise SandboxError("no way to the sandbox's proxy could be made: no socket came")
    listener = socket.socket(fileno=files[0])
    if listener.family != socket.AF_INET or listener.getsockname() != ("127.0.0.1", PORT):
        listener.close()
        raise SandboxError("no way to the sandbox's proxy could be made: another socket came")
    return listener


async def _readable(link: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(link, ready.set)
    try:
        await ready.wait()
    finally:
        with contextlib.suppress(ValueError):
            loop.remove_reader(link)
