"""A sandbox for tests that runs nothing: replies come from a script, files are kept in memory."""

from __future__ import annotations

import asyncio
import errno
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeAlias

from agentrl.errors import SandboxError
from agentrl.sandbox import TIMED_OUT, ExecResult, FileContent
from agentrl.types import MaybeAwait
from agentrl_sandbox.paths import absolute


@dataclass(frozen=True, slots=True)
class ExecCall:
    """One call of `exec`."""

    cmd: str
    user: str
    env: Mapping[str, str]
    timeout: float
    check: bool
    idempotent: bool
    cwd: str | None
    stdin: bytes | None
    max_output: int


Script: TypeAlias = Mapping[str, ExecResult] | Callable[[ExecCall], MaybeAwait[ExecResult]]
"""The reply to a command: by its exact text, or from a function (`def` or `async def`), which may raise."""


class FakeSandbox:
    """Answers each command from `script`; one that is not in it raises LookupError.

    `timeout`, `max_output` and `check` work. `calls` holds the calls of `exec`, in order; `files` the contents by path.
    """

    def __init__(self, script: Script | None = None, *, files: Mapping[str, str | bytes] | None = None) -> None:
        self.sandbox_id = "fake"
        self.calls: list[ExecCall] = []
        self.files = {absolute(path): _bytes(content) for path, content in (files or {}).items()}
        self._script: Script = script if script is not None else {}
        self._open = False

    async def __aenter__(self) -> Self:
        self._open = True
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._open = False

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
        """See `Sandbox.exec`."""
        self._require_open()
        call = ExecCall(cmd, user, dict(env or {}), timeout, check, idempotent, cwd, stdin, max_output)
        self.calls.append(call)
        try:
            async with asyncio.timeout(timeout) as deadline:
                result = _cut(await self._reply(call), max_output)
        except TimeoutError:
            if not deadline.expired():
                raise  # the script's own
            result = ExecResult(TIMED_OUT, timed_out=True)
        return result.require(cmd) if check else result

    async def write_file(self, sandbox_path: str, content: FileContent, *, user: str = "root") -> None:
        """See `Sandbox.write_file`."""
        self._require_open()
        self.files[absolute(sandbox_path)] = _bytes(content)

    async def read_file(self, sandbox_path: str, *, user: str = "root") -> str:
        """See `Sandbox.read_file`."""
        self._require_open()
        if (path := absolute(sandbox_path)) not in self.files:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", sandbox_path)
        return self.files[path].decode(errors="replace")

    async def _reply(self, call: ExecCall) -> ExecResult:
        if callable(self._script):
            reply = self._script(call)
            return await reply if inspect.isawaitable(reply) else reply
        if call.cmd not in self._script:
            raise LookupError(f"FakeSandbox has no reply to {call.cmd!r}; add it to the script")
        return self._script[call.cmd]

    def _require_open(self) -> None:
        if not self._open:
            raise SandboxError(f"sandbox {self.sandbox_id} is not open; use it within `async with`")


def _bytes(content: FileContent) -> bytes:
    if isinstance(content, Path):
        return content.read_bytes()
    return content.encode(errors="replace") if isinstance(content, str) else content


def _cut(result: ExecResult, limit: int) -> ExecResult:
    """The result as it would have been read: at most `limit` bytes of each stream."""
    whole = [text.encode(errors="replace") for text in result[1:]]
    kept = (stream[: max(limit, 0)].decode(errors="replace") for stream in whole)
    truncated = result.truncated or any(len(stream) > limit for stream in whole)
    return ExecResult(result.exit_code, *kept, timed_out=result.timed_out, truncated=truncated)
