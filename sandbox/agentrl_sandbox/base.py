"""ShellSandbox: the whole Sandbox protocol, built on a single function of the back end: start a program inside.

Files are read and written by programs inside the sandbox (cat, head, tar), which run as the requested user. So data
from a sandbox never becomes a path of the host, and links lead to targets inside.
"""

from __future__ import annotations

import abc
import asyncio
import errno
import io
import logging
import os
import posixpath
import socket
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, ClassVar, Self

from agentrl.errors import ConfigError, SandboxError
from agentrl.sandbox import ExecResult, FileContent, OnOutput, Process, Snapshot
from agentrl_sandbox import tools, trees
from agentrl_sandbox.command import Running, ShellProcess, Unstartable, fed, finish, fits
from agentrl_sandbox.egress.proxy import EgressProxy
from agentrl_sandbox.output import Output
from agentrl_sandbox.paths import absolute
from agentrl_sandbox.spec import SandboxSpec

log = logging.getLogger(__name__)

_TOOL_S = 300.0
"""The most seconds for the transfer of a file or a folder."""
_PING_S = 20.0
_PIECE = 256 << 10
_told: set[tuple[str, str]] = set()


class ShellSandbox(abc.ABC):
    """The base of sandboxes. A back end writes `_open`, `_close` and `_spawn`, and may override other hooks."""

    kind: ClassVar[str]
    """The back end's name, and the start of `sandbox_id`."""
    shell: Sequence[str] = ("bash", "-c")
    has_services: ClassVar[bool] = False
    """Whether the back end supports `SandboxSpec.services`."""
    tool_path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    """PATH of the programs that transfer files: folders to which no command of the sandbox can write."""

    def __init__(self, spec: SandboxSpec, sandbox_id: str) -> None:
        if spec.services is not None and not self.has_services:
            raise ConfigError(f"{self.kind} sandboxes have no services beside them; use the back end docker")
        self.spec = spec
        self.sandbox_id = sandbox_id
        self._state = "new"
        self._proxy = EgressProxy(sandbox_id, spec.hosts)

    # --- the back end's part ------------------------------------------------------------------------------------------

    @abc.abstractmethod
    async def _open(self) -> None:
        """Create the sandbox. If this raises or is cancelled, `_close` is called."""

    @abc.abstractmethod
    async def _close(self) -> None:
        """Remove the sandbox with all its processes, even after a partial open. The call is never cancelled."""

    async def _listener(self) -> socket.socket:
        """A socket that listens at the port `egress.listening.PORT` of the open sandbox's loopback interface. Called if
        the spec has a list of hosts as its network."""
        raise ConfigError(f"{self.kind} sandboxes cannot keep to a list of hosts; use docker or bubblewrap")

    @abc.abstractmethod
    async def _spawn(
        self, argv: Sequence[str], *, user: str, env: Mapping[str, str], cwd: str, stdin: bool, sink: OnOutput
    ) -> Running:
        """Start a program. `env` is added to the sandbox's environment, which includes `spec.env`. Without `stdin`, the
        program's stdin is empty.

        After a cancellation no process is left. Raises FileNotFoundError for a `cwd` that is no folder, and
        SandboxKilledError or SandboxError if the program cannot be started.
        """

    def _check_user(self, user: str) -> None:  # noqa: B027 - by default each user will do
        """Raises ConfigError, with the remedy, if the back end cannot act as this user."""

    def _resolve(self, sandbox_path: str) -> str:
        """The absolute path of a file for programs inside. May raise OSError."""
        return absolute(posixpath.join(self.spec.workdir, sandbox_path))

    def _folders(self) -> tuple[str, ...]:
        """The writable folders, whose content makes a snapshot."""
        workdir = absolute(self.spec.workdir)
        return ("/tmp",) if f"{workdir}/".startswith("/tmp/") else (workdir, "/tmp")

    # --- the protocol -------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if self._state != "new":
            raise SandboxError(f"sandbox {self.sandbox_id} was used before; make a new one")
        self._tell_loosened()
        self._state = "opening"
        try:
            await self._open()
            if self.spec.hosts:
                await self._proxy.serve(await self._listener())
        except BaseException:
            self._state = "closed"
            await finish(self._shut())
            raise
        self._state = "open"
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Remove the sandbox with all its processes, even if this call is cancelled. Safe to call twice."""
        if self._state != "new":
            self._state = "closed"
            await finish(self._shut())

    @property
    def refused(self) -> Mapping[str, int]:
        """See `HasAllowedHosts.refused`."""
        return self._proxy.refused

    async def exec(
        self,
        cmd: str,
        *,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float = 120,
        check: bool = False,
        idempotent: bool = True,
        cwd: str | None = None,
        stdin: bytes | None = None,
        max_output: int = 1 << 20,
        on_output: OnOutput | None = None,
    ) -> ExecResult:
        """See `Sandbox.exec`."""
        process = await self._launch(cmd, user, env, cwd, stdin is not None, Output(max_output, on_output))
        try:
            async with fed(_send(process, io.BytesIO(stdin)) if stdin is not None else None):
                result = await process.wait(timeout)
        except asyncio.CancelledError:
            await process.kill()
            raise
        return result.require(cmd) if check else result

    async def start(
        self,
        cmd: str,
        *,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        max_output: int = 1 << 20,
        on_output: OnOutput | None = None,
    ) -> Process:
        """See `Sandbox.start`."""
        return await self._launch(cmd, user, env, cwd, True, Output(max_output, on_output))

    async def write_file(self, sandbox_path: str, content: FileContent, *, user: str | None = None) -> None:
        """See `Sandbox.write_file`."""
        user, path = self._admit(user), self._file(sandbox_path)
        with _readable(content) as source:
            size = source.seek(0, os.SEEK_END)
            source.seek(0)
            await self._tool(tools.WRITE, path, str(size), user=user, name=sandbox_path, source=source)

    async def read_file(self, sandbox_path: str, *, user: str | None = None) -> str:
        """See `Sandbox.read_file`. A file that is larger than `max_bytes` of `read_bytes` raises OSError with EFBIG."""
        return (await self.read_bytes(sandbox_path, user=user)).decode(errors="replace")

    async def read_bytes(self, sandbox_path: str, *, user: str | None = None, max_bytes: int = 64 << 20) -> bytes:
        """See `Sandbox.read_bytes`."""
        user, path = self._admit(user), self._file(sandbox_path)
        target = io.BytesIO()
        limit = str(max_bytes + 1)
        await self._tool(tools.READ, path, limit, user=user, name=sandbox_path, target=target, limit=max_bytes)
        return target.getvalue()

    async def read_stored(self, sandbox_path: str, *, max_bytes: int) -> bytes:
        """The beginning of a plain file, whatever the permissions. If the back end can, the file is read without
        programs of the sandbox, as the sandbox's user may have replaced programs. Raises FileNotFoundError for a
        missing file.
        """
        try:
            return await self.read_bytes(sandbox_path, user="root", max_bytes=max_bytes)
        except IsADirectoryError as exc:
            raise FileNotFoundError(errno.ENOENT, "no plain file", sandbox_path) from exc

    async def upload(self, source: Path, sandbox_path: str, *, user: str | None = None) -> None:
        """See `Sandbox.upload`."""
        user, path = self._admit(user), self._file(sandbox_path)
        if not os.path.isdir(source):  # noqa: ASYNC240 - quick
            return await self._upload_file(source, sandbox_path, user)
        with tempfile.TemporaryFile() as archive:
            await asyncio.to_thread(trees.pack, source, archive)
            archive.seek(0)
            await self._tool(tools.UNPACK, path, user=user, name=sandbox_path, source=archive)
        return None

    async def download(
        self, sandbox_path: str, target: Path, *, user: str | None = None, max_bytes: int = 256 << 20
    ) -> None:
        """See `Sandbox.download`. A file becomes the file `target`."""
        user, path = self._admit(user), self._file(sandbox_path)
        with tempfile.TemporaryFile() as archive:
            room = max_bytes + trees.OVERHEAD
            await self._tool(tools.PACK, path, user=user, name=sandbox_path, target=archive, limit=room)
            archive.seek(0)
            await finish(asyncio.to_thread(trees.unpack, archive, target, max_bytes, sandbox_path))

    async def snapshot(self) -> Snapshot:
        """See `Sandbox.snapshot`."""
        user, folders = self._admit(None), self._folders()
        target = io.BytesIO()
        limit = (self.spec.disk_mb << 20) + trees.OVERHEAD
        await self._tool(tools.SAVE, *_relative(folders), user=user, target=target, limit=limit)
        return Snapshot(target.getvalue(), folders)

    async def restore(self, snapshot: Snapshot) -> None:
        """See `Sandbox.restore`. Raises ConfigError if the snapshot is of other folders."""
        user, folders = self._admit(None), self._folders()
        if snapshot.folders != folders:
            raise ConfigError(
                f"the snapshot holds {', '.join(snapshot.folders)}, but sandbox {self.sandbox_id} writes to "
                f"{', '.join(folders)}; restore it in one with the same workdir"
            )
        await self._tool(tools.RESTORE, *_relative(folders), user=user, source=io.BytesIO(snapshot.archive))

    async def ping(self) -> None:
        """See `Sandbox.ping`."""
        self._admit(None)
        result = await self.exec(":", timeout=_PING_S)
        if result.exit_code:
            problem = "does not answer" if result.timed_out else f"cannot run a command: {result.stderr.strip()}"
            raise SandboxError(f"sandbox {self.sandbox_id} {problem}")

    # --- how ----------------------------------------------------------------------------------------------------------

    def _admit(self, user: str | None) -> str:
        """The user that runs a command. Raises an error if the sandbox is not open."""
        if self._state != "open":
            raise SandboxError(f"sandbox {self.sandbox_id} is not open; use it within `async with`")
        user = user or self.spec.user
        self._check_user(user)
        return user

    async def _shut(self) -> None:
        await self._proxy.close()
        await self._close()

    def _check_still_open(self) -> None:
        if self._state != "open":
            raise SandboxError(f"sandbox {self.sandbox_id} was closed while a command ran in it")

    def _file(self, sandbox_path: str) -> str:
        if "\0" in sandbox_path:
            raise FileNotFoundError(errno.ENOENT, "no path can hold a NUL character", sandbox_path)
        return self._resolve(sandbox_path)

    async def _launch(
        self, cmd: str, user: str | None, env: Mapping[str, str] | None, cwd: str | None, stdin: bool, output: Output
    ) -> Process:
        user, env = self._admit(user), env or {}
        for name, value in env.items():
            if not name or "=" in name or "\0" in name + value:
                raise ConfigError(f"no environment can hold {name!r}={value[:80]!r}; leave NUL and = out")
        folder = self._file(cwd or ".")
        if not fits(cmd):
            return Unstartable()
        try:
            running = await self._spawn(
                [*self.shell, cmd], user=user, env=env, cwd=folder, stdin=stdin, sink=output.add
            )
        except FileNotFoundError as exc:
            raise FileNotFoundError(errno.ENOENT, "no such folder in the sandbox", cwd or ".") from exc
        return ShellProcess(running, output, self._check_still_open)

    async def _tool(
        self,
        script: str,
        *args: str,
        user: str,
        name: str | None = None,
        source: IO[bytes] | None = None,
        target: IO[bytes] | None = None,
        limit: int = 1 << 20,
    ) -> None:
        """Run a script of `tools` in the root folder. Raises OSError about the caller's path `name`; the error is EFBIG
        if the output has more than `limit` bytes."""
        catch = tools.Catch(target or io.BytesIO(), limit)
        running = await self._spawn(
            ["sh", "-c", script, "sh", *args],
            user=user,
            env={"PATH": self.tool_path, "LC_ALL": "C"},
            cwd=self._resolve("/"),
            stdin=source is not None,
            sink=catch.add,
        )
        process = ShellProcess(running, catch.output, self._check_still_open)
        try:
            async with fed(_send(process, source) if source is not None else None), catch.killing(process):
                result = await process.wait(_TOOL_S)
        except asyncio.CancelledError:
            await process.kill()
            raise
        catch.check(result, name, self.sandbox_id)

    async def _upload_file(self, source: Path, sandbox_path: str, user: str) -> None:
        await self.write_file(sandbox_path, source, user=user)
        mode = f"{os.stat(source).st_mode & 0o777:o}"
        await self._tool(tools.CHMOD, self._file(sandbox_path), mode, user=user, name=sandbox_path)

    def _tell_loosened(self) -> None:
        """Log settings that are less safe than the defaults, once for each kind of sandbox: a pool has many equal
        sandboxes."""
        for weakness in self.spec.loosened():
            if (self.kind, weakness) not in _told:
                _told.add((self.kind, weakness))
                log.warning("%s sandboxes are less safe than by default: %s", self.kind, weakness)


async def _send(process: Process, source: IO[bytes]) -> None:
    """Send the content of a file to the stdin of a command, piece by piece."""
    while piece := source.read(_PIECE):
        await process.send(piece)
    await process.close_stdin()


def _relative(folders: Sequence[str]) -> list[str]:
    return [f"./{folder.lstrip('/')}" for folder in folders]


def _readable(content: FileContent) -> IO[bytes]:
    if isinstance(content, Path):
        return content.open("rb")
    return io.BytesIO(content.encode(errors="replace") if isinstance(content, str) else content)
