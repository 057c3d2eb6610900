"""The Sandbox protocol: a machine in which an episode's commands run. The back ends live in `agentrl_sandbox`.

The protocol extends slime's `slime.agent.sandbox.Sandbox` by keywords and methods, and by a richer result of `exec`. So
code written for slime's sandbox works with ours.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, NamedTuple, Protocol, Self, TypeAlias, runtime_checkable

from agentrl.errors import SandboxError

FileContent: TypeAlias = str | bytes | Path
"""Content for `write_file`: text (as UTF-8), bytes, or a file on the host machine."""

OnOutput: TypeAlias = Callable[[Literal["stdout", "stderr"], bytes], None]
"""Called with each piece of output on arrival, also beyond `max_output`."""

TIMED_OUT = 124  # exit code of a command killed at its timeout, as in timeout(1)
CANNOT_RUN = 126  # exit code of a command that is too long, or contains a NUL character


class _Output(NamedTuple):
    exit_code: int
    stdout: str
    stderr: str


class ExecResult(_Output):
    """The result of a command: the tuple `(exit_code, stdout, stderr)` for slime, with two flags.

    If signal n ended the command, the exit code is 128 + n, as in a shell. Bytes outside UTF-8 are shown as U+FFFD.
    `==` compares the tuple and ignores the flags.
    """

    timed_out: bool = False
    truncated: bool = False
    """`stdout` or `stderr` was longer than `max_output` bytes. The middle was dropped, and a note in its place gives
    the number of dropped bytes."""

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
        """This result. Raises CommandError unless the command exited with 0, in time, with complete output."""
        if self.exit_code or self.timed_out or self.truncated:
            raise CommandError(cmd, self)
        return self


class CommandError(SandboxError, RuntimeError):
    """A command run with `check=True` did not succeed. The environment is to blame, not the policy."""

    def __init__(self, cmd: str, result: ExecResult) -> None:
        super().__init__(cmd, result)
        self.cmd, self.result = cmd, result

    def __str__(self) -> str:
        result, outcome = self.result, f"failed with exit code {self.result.exit_code}"
        if result.timed_out:
            outcome = "timed out; raise timeout"
        elif not result.exit_code:
            outcome = "wrote more than was kept; raise max_output"
        stderr = " ".join(result.stderr[-400:].split())
        return f"command {self.cmd[:120]!r} {outcome}" + (f": {stderr}" if stderr else "")


class SandboxKilledError(SandboxError):
    """A program in the sandbox ended the sandbox, for example by using up memory or processes.

    An Env may catch the error and end the episode with a reward. Uncaught, it is an environment failure like any
    SandboxError.
    """


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The files of a sandbox's writable folders, with owners and modes, but without processes. Can be pickled."""

    archive: bytes
    """A tar file, compressed by gzip; paths are relative to the sandbox's root."""
    folders: tuple[str, ...]
    """The saved folders."""


@runtime_checkable
class HasAllowedHosts(Protocol):
    """A sandbox that can be limited to a list of hosts."""

    @property
    def refused(self) -> Mapping[str, int]:
        """Number of requests to refused addresses, by `host:port`. Readable after the sandbox's end."""
        ...


@dataclass(frozen=True, slots=True)
class MachineSnapshot(abc.ABC):
    """A running machine with processes, memory and files. The service keeps the machine. Can be pickled.

    Each sandbox made from the snapshot is a separate machine, and continues there.
    """

    backend: str
    """Name of the sandbox back end that runs the machine."""
    image: str
    """Identifier of the saved machine at the service."""
    until: float
    """Unix time after which the machine may be removed."""

    @abc.abstractmethod
    async def release(self) -> None:
        """Remove the machine, now or when no sandbox made from it runs. Safe to call twice. Raises SandboxError."""


SandboxState: TypeAlias = Snapshot | MachineSnapshot
"""The state from which a sandbox can start, as returned by `SandboxPool.snapshot`."""


class Process(Protocol):
    """A command that runs in a sandbox while other commands run."""

    async def send(self, data: bytes) -> None:
        """Write to stdin. Raises BrokenPipeError if the command has closed stdin, or has ended."""
        ...

    async def close_stdin(self) -> None: ...

    async def wait(self, timeout: float | None = None) -> ExecResult:
        """The result when the process ends. After `timeout` seconds the process is killed, with its child processes."""
        ...

    async def kill(self) -> None:
        """Kill the process with its child processes, even children outside the session. Safe to call twice."""
        ...


@runtime_checkable
class Sandbox(Protocol):
    """A machine for an episode. Enter with `async with`. The exit removes the machine with all processes.

    SandboxError means that the sandbox itself broke, or is not open. A missing file is FileNotFoundError, and a failing
    command is an ExecResult. The default of `user` is the sandbox's unprivileged user. ConfigError means that the back
    end cannot act as another user. A relative path starts in the folder where commands run.
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
        """Run a shell command and wait. After `timeout` seconds the command is killed, with its child processes, even
        children outside the session.

        The default of `stdin` is empty. `max_output` bytes of stdout are kept, and as many of stderr: the first half
        and the last half, with a note between. With `check`, CommandError is raised unless the command succeeded and
        its output is complete. `idempotent` allows a back end to send the command again after a lost connection. A
        missing `cwd` raises FileNotFoundError. When the caller is cancelled, the command is killed as at its timeout.
        Background processes of an ended command live until the sandbox closes.
        """
        ...

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
        """Start a shell command with stdin open, and return at once. The process ends with the sandbox."""
        ...

    async def write_file(self, sandbox_path: str, content: FileContent, *, user: str | None = None) -> None:
        """Create or replace a file and its folders. Raises PermissionError, or OSError with ENOSPC on a full disk. A
        file that was not written completely always raises an error."""
        ...

    async def read_file(self, sandbox_path: str, *, user: str | None = None) -> str:
        """The whole file as text, with U+FFFD for bytes outside UTF-8. Raises FileNotFoundError, IsADirectoryError or
        PermissionError."""
        ...

    async def read_bytes(self, sandbox_path: str, *, user: str | None = None, max_bytes: int = 64 << 20) -> bytes:
        """The whole file. Raises as `read_file` does, and OSError with EFBIG for more than `max_bytes` bytes."""
        ...

    async def upload(self, source: Path, sandbox_path: str, *, user: str | None = None) -> None:
        """Copy a file or a folder of this machine to `sandbox_path`. A missing folder is created.

        An existing folder keeps its other files. Modes are kept. Links inside the folder are kept as links. Links to
        the outside are refused with ConfigError.
        """
        ...

    async def download(
        self, sandbox_path: str, target: Path, *, user: str | None = None, max_bytes: int = 256 << 20
    ) -> None:
        """Copy a file or a folder of the sandbox to this machine. A folder's content goes into `target`.

        The sandbox is not trusted. SandboxError is raised for entries outside `target`, links to the outside, and
        special files; OSError with EFBIG for more than `max_bytes` bytes. After an error, no new file is left in
        `target`.
        """
        ...

    async def snapshot(self) -> Snapshot:
        """Save the files of the writable folders. No command may run meanwhile. Raises SandboxError with the name of a
        file that the sandbox's user cannot read."""
        ...

    async def restore(self, snapshot: Snapshot) -> None:
        """Restore the writable folders to the snapshot. Background processes are not killed first."""
        ...

    async def ping(self) -> None:
        """Raises SandboxError, with the reason, if commands can no longer run in this sandbox."""
        ...
