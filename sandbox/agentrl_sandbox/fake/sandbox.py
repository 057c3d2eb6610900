"""A sandbox for tests without programs: replies come from a script, files stay in memory."""

from __future__ import annotations

import asyncio
import errno
import inspect
import io
import posixpath
import secrets
import tarfile
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Self, TypeAlias

from agentrl.errors import SandboxError
from agentrl.sandbox import TIMED_OUT, ExecResult, FileContent, OnOutput, Process, Snapshot
from agentrl.types import MaybeAwait
from agentrl_sandbox import trees
from agentrl_sandbox.output import Output
from agentrl_sandbox.paths import absolute


@dataclass(frozen=True, slots=True)
class ExecCall:
    """A call of `exec`, or a call of `start` with the following `wait`."""

    cmd: str
    user: str
    env: Mapping[str, str]
    timeout: float | None
    check: bool
    idempotent: bool
    cwd: str | None
    stdin: bytes | None
    max_output: int


Script: TypeAlias = Mapping[str, ExecResult] | Callable[[ExecCall], MaybeAwait[ExecResult]]
"""The results of commands: a mapping from a command's exact text to its result, or a function of the call, which may
raise."""


class FakeSandbox:
    """A sandbox in which `script` gives the result of each command. An unknown command raises LookupError.

    `timeout`, `max_output`, `on_output` and `check` work. For a command that `start` has started, the result is
    looked up at the first `wait`, with all data sent so far as stdin. `calls` lists the calls in order, `files` the
    contents by path. A fake has no modes, no empty folders, and no links: links in an upload are followed.
    """

    def __init__(
        self, script: Script | None = None, *, files: Mapping[str, str | bytes] | None = None, workdir: str = "/"
    ) -> None:
        self.sandbox_id = f"fake-{secrets.token_hex(6)}"
        self.calls: list[ExecCall] = []
        self.files = {absolute(path): _bytes(content) for path, content in (files or {}).items()}
        self._script: Script = script if script is not None else {}
        self._workdir = workdir
        self._state = "new"

    @property
    def is_open(self) -> bool:
        return self._state == "open"

    async def __aenter__(self) -> Self:
        if self._state != "new":
            raise SandboxError(f"sandbox {self.sandbox_id} was used before; make a new one")
        self._state = "open"
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._state = "closed"

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
        call = ExecCall(cmd, user or "agent", dict(env or {}), timeout, check, idempotent, cwd, stdin, max_output)
        result = await self._play(call, on_output)
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
        self._require_open()

        async def play(timeout: float | None, stdin: bytes) -> ExecResult:
            call = ExecCall(cmd, user or "agent", dict(env or {}), timeout, False, False, cwd, stdin, max_output)
            return await self._play(call, on_output)

        return _FakeProcess(play)

    async def write_file(self, sandbox_path: str, content: FileContent, *, user: str | None = None) -> None:
        """See `Sandbox.write_file`."""
        self._require_open()
        path = self._path(sandbox_path)
        if self._below(path):
            raise IsADirectoryError(errno.EISDIR, "Is a directory", sandbox_path)
        if any(folder in self.files for folder in _folders_of(path)):
            raise NotADirectoryError(errno.ENOTDIR, "Not a directory", sandbox_path)
        self.files[path] = _bytes(content)

    async def read_file(self, sandbox_path: str, *, user: str | None = None) -> str:
        """See `Sandbox.read_file`."""
        return (await self.read_bytes(sandbox_path)).decode(errors="replace")

    async def read_bytes(self, sandbox_path: str, *, user: str | None = None, max_bytes: int = 64 << 20) -> bytes:
        """See `Sandbox.read_bytes`."""
        self._require_open()
        path = self._path(sandbox_path)
        if path not in self.files:
            if self._below(path):
                raise IsADirectoryError(errno.EISDIR, "Is a directory", sandbox_path)
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", sandbox_path)
        if len(self.files[path]) > max_bytes:
            raise OSError(errno.EFBIG, "longer than allowed; raise max_bytes", sandbox_path)
        return self.files[path]

    async def upload(self, source: Path, sandbox_path: str, *, user: str | None = None) -> None:
        """See `Sandbox.upload`."""
        self._require_open()
        for name, file in _files_of(source):
            await self.write_file(posixpath.join(sandbox_path, name), file)

    async def download(
        self, sandbox_path: str, target: Path, *, user: str | None = None, max_bytes: int = 256 << 20
    ) -> None:
        """See `Sandbox.download`."""
        self._require_open()
        path = self._path(sandbox_path)
        below = self._below(path)
        if path not in self.files and not below:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", sandbox_path)
        with tempfile.TemporaryFile() as archive:
            with tarfile.open(fileobj=archive, mode="w", format=tarfile.GNU_FORMAT) as tar:
                if below:
                    _add(tar, ".", None)
                for name in below or [posixpath.basename(path)]:
                    _add(tar, name, self.files[posixpath.join(path, name) if below else path])
            trees.unpack(archive, target, max_bytes, sandbox_path)

    async def snapshot(self) -> Snapshot:
        """See `Sandbox.snapshot`."""
        self._require_open()
        target = io.BytesIO()
        with tarfile.open(fileobj=target, mode="w:gz") as tar:
            for path, data in self.files.items():
                _add(tar, path[1:], data)
        return Snapshot(target.getvalue(), ("/",))

    async def restore(self, snapshot: Snapshot) -> None:
        """See `Sandbox.restore`."""
        self._require_open()
        with tarfile.open(fileobj=io.BytesIO(snapshot.archive)) as tar:
            files = {f"/{entry.name}": tar.extractfile(entry) for entry in tar}
            self.files = {path: file.read() for path, file in files.items() if file is not None}

    async def ping(self) -> None:
        """See `Sandbox.ping`."""
        self._require_open()

    async def _play(self, call: ExecCall, on_output: OnOutput | None) -> ExecResult:
        self._require_open()
        self.calls.append(call)
        try:
            async with asyncio.timeout(call.timeout) as deadline:
                return _told(await self._reply(call), call.max_output, on_output)
        except TimeoutError:
            if not deadline.expired():
                raise  # the script's own
            return ExecResult(TIMED_OUT, timed_out=True)

    async def _reply(self, call: ExecCall) -> ExecResult:
        if callable(self._script):
            reply = self._script(call)
            return await reply if inspect.isawaitable(reply) else reply
        if call.cmd not in self._script:
            raise LookupError(f"FakeSandbox has no reply to {call.cmd!r}; add it to the script")
        return self._script[call.cmd]

    def _require_open(self) -> None:
        if not self.is_open:
            raise SandboxError(f"sandbox {self.sandbox_id} is not open; use it within `async with`")

    def _path(self, sandbox_path: str) -> str:
        if "\0" in sandbox_path:
            raise FileNotFoundError(errno.ENOENT, "no path can hold a NUL character", sandbox_path)
        return absolute(posixpath.join(self._workdir, sandbox_path))

    def _below(self, folder: str) -> list[str]:
        """Path relative to the folder -> content, for the files below a folder."""
        start = f"{folder.rstrip('/')}/"
        return [path.removeprefix(start) for path in self.files if path.startswith(start)]


class _FakeProcess:
    """A command that was started. Its result is looked up once, at the first `wait`."""

    def __init__(self, play: Callable[[float | None, bytes], Awaitable[ExecResult]]) -> None:
        self._play = play
        self._stdin = bytearray()
        self._closed = False
        self._result: ExecResult | None = None

    async def send(self, data: bytes) -> None:
        if self._closed or self._result:
            raise BrokenPipeError("the command has closed its stdin, or ended")
        self._stdin += data

    async def close_stdin(self) -> None:
        self._closed = True

    async def wait(self, timeout: float | None = None) -> ExecResult:
        if self._result is None:
            self._result = await self._play(timeout, bytes(self._stdin))
        return self._result

    async def kill(self) -> None:
        self._result = self._result or ExecResult(128 + 9)


def _bytes(content: FileContent) -> bytes:
    if isinstance(content, Path):
        return content.read_bytes()
    return content.encode(errors="replace") if isinstance(content, str) else content


def _files_of(source: Path) -> list[tuple[str, Path]]:
    """Relative path -> content, for the files of an upload."""
    if not source.is_dir():
        return [("", source)]
    trees.pack(source, io.BytesIO())  # raises the same errors as for other sandboxes
    return [(str(file.relative_to(source)), file) for file in source.rglob("*") if file.is_file()]


def _folders_of(path: str) -> list[str]:
    return [str(folder) for folder in PurePosixPath(path).parents]


def _add(tar: tarfile.TarFile, name: str, data: bytes | None) -> None:
    """Add a file to a tar file, or a folder if there is no data."""
    entry = tarfile.TarInfo(name)
    if data is None:
        entry.type, entry.mode = tarfile.DIRTYPE, 0o755
    else:
        entry.size = len(data)
    tar.addfile(entry, io.BytesIO(data or b""))


def _told(result: ExecResult, limit: int, on_output: OnOutput | None) -> ExecResult:
    """A result as a real sandbox returns it: with at most `limit` bytes of each stream."""
    output = Output(limit, on_output)
    if result.stdout:
        output.add("stdout", result.stdout.encode(errors="replace"))
    if result.stderr:
        output.add("stderr", result.stderr.encode(errors="replace"))
    recorded = output.result(result.exit_code)
    truncated = result.truncated or recorded.truncated
    return ExecResult(*recorded, timed_out=result.timed_out, truncated=truncated)
