"""A sandbox that isolates nothing: subprocesses in a temporary folder, for trusted code on your own machine."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import pwd
import secrets
import shutil
import signal
import stat
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from agentrl.errors import ConfigError, SandboxError
from agentrl.sandbox import CANNOT_RUN, ExecResult, FileContent
from agentrl_sandbox.paths import absolute
from agentrl_sandbox.process import Process

_MARK = "AGENTRL_SANDBOX"
"""Environment variable by which a sandbox knows its processes, those that left their process group included."""

_KILLING_S = 5.0


class LocalSandbox:
    """NO ISOLATION. Commands run on this machine, as you, and can read, change and delete whatever you can.

    It is for code you would run in your own shell: your tests, a demo, an Env that is itself harmless. Never give it
    what a model wrote; that takes a back end with containers. `trusted=True` says that you know.

    What it does give: a temporary folder that is the sandbox's root, an environment without your variables (PATH
    stays; no API key is inherited), and an end: closing kills every process it started and removes the folder.
    (Without /proc, as on macOS, a background process that redirected its output is not found, and lives on.)

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
        # Resolved, because the path of the temporary folder may itself hold links, which are no way out of the sandbox.
        self._root = Path(os.path.realpath(tempfile.mkdtemp(prefix=f"agentrl-{self.sandbox_id}-")))
        self._open = True
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None, /
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Kill what still runs and remove the folder, even if this call is cancelled. Safe to call twice."""
        self._open = False
        if self._root is None:
            return
        for process in self._processes:
            process.kill()
        await asyncio.to_thread(self._destroy, self._root)  # a thread is not cancelled with its caller
        for process in list(self._processes):
            await process.release()

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
        """See `Sandbox.exec`. The shell is bash, or sh where there is none. A missing `cwd` is FileNotFoundError."""
        self._admit(user)
        folder = self._locate(cwd or "/")
        if not os.path.isdir(folder):
            raise FileNotFoundError(errno.ENOENT, "no such folder in the sandbox", cwd)
        process = self._new_process(max_output)
        try:
            await self._start(process, cmd, cwd=folder, env=env, stdin=stdin)
        except _UnrunnableError as exc:
            result = ExecResult(CANNOT_RUN, "", f"cannot run the command: {exc}\n")
        else:
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

    def _new_process(self, max_output: int) -> Process:
        process = Process(max_output)
        self._processes.add(process)
        process.released.add_done_callback(lambda _: self._processes.discard(process))
        return process

    async def _start(
        self, process: Process, cmd: str, *, cwd: str, env: Mapping[str, str] | None, stdin: bytes | None
    ) -> None:
        shell = shutil.which("bash") or "/bin/sh"
        base = {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8", "HOME": str(self._root)}
        start = process.start(
            [shell, "-c", cmd.encode(errors="replace")],
            cwd=cwd,
            env=base | dict(env or {}) | {_MARK: self.sandbox_id},
            stdin=stdin,
        )
        try:
            await asyncio.shield(start)
        except asyncio.CancelledError:
            process.kill()
            raise
        except OSError as exc:
            raise SandboxError(f"sandbox {self.sandbox_id} cannot start a shell: {exc.strerror}") from exc
