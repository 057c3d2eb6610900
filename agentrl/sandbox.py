"""The Sandbox protocol: run commands, write and read files. The back ends live in `agentrl_sandbox`.

The protocol extends slime's `slime.agent.sandbox.Sandbox` by keywords (`cwd`, `stdin`, `max_output`) and by a richer
result. So code written for slime's sandbox works with ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Protocol, Self, TypeAlias, runtime_checkable

from agentrl.errors import SandboxError

FileContent: TypeAlias = str | bytes | Path
"""Content for `write_file`: text (as UTF-8), bytes, or a file on the host machine."""

TIMED_OUT = 124  # exit code of a command killed at its timeout, as in timeout(1)
CANNOT_RUN = 126  # exit code of a command that no shell takes: it is too long, or holds a NUL character


class _Output(NamedTuple):
    exit_code: int
    stdout: str
    stderr: str


class ExecResult(_Output):
    """The result of a command: the tuple `(exit_code, stdout, stderr)` that slime unpacks, with two flags.

    A command ended by signal n has exit code 128 + n, as in a shell. Bytes that are not UTF-8 are shown as U+FFFD.
    `==` compares the tuple and ignores the flags.
    """

    timed_out: bool = False
    truncated: bool = False
    """`stdout` or `stderr` holds only the first `max_output` bytes of the output."""

    def __new__(
        cls, exit_code: int, stdout: str = "", stderr: str = "", *, timed_out: bool = False, truncated: bool = False
    ) -> Self:
        self = super().__new__(cls, exit_code, stdout, stderr)
        self.timed_out, self.truncated = timed_out, truncated
        return self

    def __repr__(self) -> str:
        flags = "".join(f", {name}=True" for name in ("timed_out", "truncated") if getattr(self, name))
        return f"ExecResult({self.exit_code}, {self.stdout!r}, {self.stderr!r}{flags})"

    def require(self, cmd: str) -> Self:
        """This result. Raises CommandError unless the command exited with 0, in time, with its whole output."""
        if self.exit_code or self.timed_out or self.truncated:
            raise CommandError(cmd, self)
        return self


class CommandError(SandboxError, RuntimeError):
    """A command run with `check=True` did not succeed. The world is broken, not the policy."""

    def __init__(self, cmd: str, result: ExecResult) -> None:
        super().__init__(cmd, result)
        self.cmd, self.result = cmd, result

    def __str__(self) -> str:
        result, what = self.result, f"failed with exit code {self.result.exit_code}"
        if result.timed_out:
            what = "timed out; raise timeout"
        elif not result.exit_code:
            what = "wrote more than was kept; raise max_output"
        said = " ".join(result.stderr[-400:].split())
        return f"command {self.cmd[:120]!r} {what}" + (f": {said}" if said else "")


@runtime_checkable
class Sandbox(Protocol):
    """A machine for one episode. Enter it with `async with`; it is removed afterwards.

    SandboxError says that the sandbox itself broke, or is not open. A missing file is FileNotFoundError instead, and a
    failing command is an ExecResult.
    """

    sandbox_id: str

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None, /
    ) -> None: ...

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
        """Run a shell command and wait for it. After `timeout` seconds it is killed, with its child processes.

        `stdin` is empty unless given. The first `max_output` bytes of stdout and of stderr are kept; the rest is read
        and dropped. With `check`, CommandError is raised unless the command succeeded and its output is whole.
        `idempotent` allows a back end to send the command again after a lost connection. A missing `cwd` raises
        FileNotFoundError. When the caller is cancelled, the command is killed; its background processes live until the
        sandbox closes.
        """
        ...

    async def write_file(self, sandbox_path: str, content: FileContent, *, user: str = "root") -> None:
        """Create or replace a file and its folders. A relative path starts in the folder where commands run."""
        ...

    async def read_file(self, sandbox_path: str, *, user: str = "root") -> str:
        """The whole file as text, with U+FFFD for bytes that are not UTF-8. Raises FileNotFoundError."""
        ...
