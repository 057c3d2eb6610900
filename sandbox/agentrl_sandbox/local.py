"""A sandbox that isolates nothing: subprocesses in a temporary folder, for trusted code on your own machine."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import io
import os
import pwd
import secrets
import shutil
import stat
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, Self

from agentrl.errors import ConfigError, SandboxError
from agentrl.sandbox import CANNOT_RUN, ExecResult, FileContent
from agentrl_sandbox.paths import absolute
from agentrl_sandbox.process import Process, kill_all

_MARK = "AGENTRL_SANDBOX"
"""Environment variable by which a sandbox knows its processes, those that left their process group included."""

_LONGEST_SCRIPT = 128 << 10
"""Bytes; Linux takes no longer argument to a program."""


class LocalSandbox:
    """NO ISOLATION. Commands run on this machine, as you, and can read, change and delete whatever you can.

    It is for code you would run in your own shell: your tests, a demo, an Env that is itself harmless. Never give it
    what a model wrote; that takes a back end with containers. `trusted=True` says that you know.

    What it does give: a temporary folder that is the sandbox's root, an environment without your variables (PATH
    stays; no API key is inherited), and an end: closing kills the processes it started and removes the folder.

    What closing cannot find lives on: a process that dropped its environment, left the folder and lost its parent, all
    three. Without /proc, as on macOS, it is one that outlived its command. A SIGKILL of this process closes nothing.

    `write_file`, `read_file` and `cwd` take paths from that root: "/workspace/x" is `<root>/workspace/x`, `..` stops
    at the root, and a symbolic link that leads out raises PermissionError. A *command* sees the host's paths, so
    write commands with relative paths; they start in `cwd`, or in the root, which is also $HOME.

    All runs as the user you are. `user` may name that user, or be "root", the protocol's word for the sandbox's owner;
    any other raises ConfigError, as nothing here would keep the two apart.
    """

    def __init__(self, *, trusted: bool = False) -> None:
        if not trusted:
            raise ConfigError(
                "LocalSandbox isolates nothing: commands run on this machine as you; "
                "pass trusted=True if the code is yours, or use a sandbox with containers"
            )
        self.sandbox_id = f"local-{secrets.token_hex(6)}"
        self._root: Path | None = None
        self._open = False
        self._processes: set[Process] = set()
        self._files = threading.Lock()

    @property
    def root(self) -> Path:
        """The folder on this machine that is the sandbox's root."""
        if self._root is None:
            raise SandboxError(f"sandbox {self.sandbox_id} is not open; use it within `async with`")
        return self._root

    async def __aenter__(self) -> Self:
        if self._root is not None:
            raise SandboxError(f"sandbox {self.sandbox_id} was used before; make a new one")
        self._root = _make_folder(f"agentrl-{self.sandbox_id}-")
        self._open = True
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Kill what still runs and remove the folder, even if this call is cancelled. Safe to call twice."""
        self._open = False
        if self._root is None:
            return
        for process in self._processes:
            process.kill()
        try:
            await asyncio.to_thread(self._destroy, self._root)  # a thread is not cancelled with its caller
        finally:
            await asyncio.gather(*(process.release() for process in self._processes))

    async def exec(
        self,
        cmd: str,
        *,
        user: str = "root",
        env: Mapping[str, str] | None = None,
        timeout: float = 120,
        check: bool = False,
        idempotent: bool = True,
        cwd: str | None = None,
        stdin: bytes | None = None,
        max_output: int = 1 << 20,
    ) -> ExecResult:
        """See `Sandbox.exec`. The shell is bash, or sh where there is none."""
        self._admit(user)
        folder = self._locate_folder(cwd or "/")
        script = cmd.encode(errors="replace")
        if b"\0" in script or len(script) >= _LONGEST_SCRIPT:
            result = ExecResult(CANNOT_RUN, "", "cannot run the command: it is too long or holds a NUL character\n")
        else:
            process = await self._start(script, Process(max_output), cwd=folder, env=env or {}, stdin=stdin)
            result = await process.wait(timeout)
        if not self._open:
            raise SandboxError(f"sandbox {self.sandbox_id} was closed while a command ran in it")
        return result.require(cmd) if check else result

    async def write_file(self, sandbox_path: str, content: FileContent, *, user: str = "root") -> None:
        """See `Sandbox.write_file`."""
        self._admit(user)
        await asyncio.to_thread(self._write, sandbox_path, content)

    async def read_file(self, sandbox_path: str, *, user: str = "root") -> str:
        """See `Sandbox.read_file`."""
        self._admit(user)
        return await asyncio.to_thread(self._read, sandbox_path)

    def _admit(self, user: str) -> None:
        if not self._open:
            raise SandboxError(f"sandbox {self.sandbox_id} is not open; use it within `async with`")
        if user not in ("root", me := _current_user()):
            raise ConfigError(
                f"LocalSandbox runs everything as {me!r} and cannot act as {user!r}; "
                "leave `user` out, or use a sandbox with containers"
            )

    async def _start(
        self, script: bytes, process: Process, *, cwd: str, env: Mapping[str, str], stdin: bytes | None
    ) -> Process:
        self._processes.add(process)
        process.released.add_done_callback(lambda _: self._processes.discard(process))
        argv: list[str | bytes] = [shutil.which("bash") or "/bin/sh", "-c", script]
        base = {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8", "HOME": str(self.root)}
        environment = base | dict(env) | {_MARK: self.sandbox_id}
        try:
            # Shielded, because an interrupted start leaves a process that cannot be found.
            await asyncio.shield(process.start(argv, cwd=cwd, env=environment, stdin=stdin))
        except asyncio.CancelledError:
            process.kill()
            raise
        except OSError as exc:
            raise SandboxError(f"sandbox {self.sandbox_id} cannot start a shell: {exc.strerror}") from exc
        return process

    def _locate(self, sandbox_path: str) -> str:
        """The path on this machine of a path in the sandbox, with all links followed."""
        if "\0" in sandbox_path:
            raise FileNotFoundError(errno.ENOENT, "no path can hold a NUL character", sandbox_path)
        real = os.path.realpath(f"{self.root}{absolute(sandbox_path)}")
        if not Path(real).is_relative_to(self.root):
            raise PermissionError(errno.EACCES, "the path leads out of the sandbox", sandbox_path)
        return real

    def _locate_folder(self, sandbox_path: str) -> str:
        if not os.path.isdir(folder := self._locate(sandbox_path)):
            raise FileNotFoundError(errno.ENOENT, "no such folder in the sandbox", sandbox_path)
        return folder

    def _write(self, sandbox_path: str, content: FileContent) -> None:
        with _readable(content) as source, self._file_access(sandbox_path):
            path = self._locate(sandbox_path)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb", opener=_open_regular) as target:
                shutil.copyfileobj(source, target)

    def _read(self, sandbox_path: str) -> str:
        with self._file_access(sandbox_path), open(self._locate(sandbox_path), "rb", opener=_open_regular) as file:
            return file.read().decode(errors="replace")

    @contextlib.contextmanager
    def _file_access(self, sandbox_path: str) -> Iterator[None]:
        """Lock out `close`, so that a late write cannot recreate the folder. Errors name the path as the caller did."""
        with self._files:
            if not self._open:
                raise SandboxError(f"sandbox {self.sandbox_id} was closed")
            try:
                yield
            except OSError as exc:
                raise OSError(exc.errno, exc.strerror, sandbox_path) from exc

    def _destroy(self, root: Path) -> None:
        kill_all(_MARK, self.sandbox_id, root)
        with self._files:
            _remove(root)


def _make_folder(prefix: str) -> Path:
    """Make a folder. Its path is resolved, because links in it must not look like a way out of the sandbox."""
    return Path(os.path.realpath(tempfile.mkdtemp(prefix=prefix)))


def _readable(content: FileContent) -> BinaryIO:
    if isinstance(content, Path):
        return content.open("rb")
    return io.BytesIO(content.encode(errors="replace") if isinstance(content, str) else content)


def _current_user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # in a container, a user may have a number and no name
        return str(os.getuid())


def _open_regular(path: str, flags: int) -> int:
    """Open without waiting for a named pipe, and without following a link made just now."""
    fd = os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW, 0o666)
    if stat.S_ISFIFO(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", path)
    return fd


def _remove(root: Path) -> None:
    if not root.exists():
        return
    try:
        shutil.rmtree(root)
    except PermissionError:  # a command made folders read-only
        root.chmod(0o700)
        for folder, names, _ in os.walk(root):
            for path in (Path(folder, name) for name in names):
                if not path.is_symlink():
                    path.chmod(0o700)
        shutil.rmtree(root)
