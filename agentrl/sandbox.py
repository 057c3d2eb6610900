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
"""Called with each piece of output as it arrives, beyond `max_output` too."""

TIMED_OUT = 124  # exit code of a command killed at its timeout, as in timeout(1)
CANNOT_RUN = 126  # exit code of a command that no shell accepts: it is too long, or contains a NUL character


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
    """`stdout` or `stderr` is longer than `max_output` bytes: its middle was dropped, and a mark gives the size."""

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
        result, outcome = self.result, f"failed with exit code {self.result.exit_code}"
        if result.timed_out:
            outcome = "timed out; raise timeout"
        elif not result.exit_code:
            outcome = "wrote more than was kept; raise max_output"
        stderr = " ".join(result.stderr[-400:].split())
        return f"command {self.cmd[:120]!r} {outcome}" + (f": {stderr}" if stderr else "")


class SandboxKilledError(SandboxError):
    """A program in the sandbox ended it, for example by using up memory or processes. Nothing else broke.

    An Env may catch it and end the episode with a reward. Uncaught, it is an environment failure like any SandboxError.
    """


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The files of a sandbox's writable folders, with owners and modes, but no processes. It can be pickled."""

    archive: bytes
    """A tar file, compressed by gzip; paths are relative to the sandbox's root."""
    folders: tuple[str, ...]
    """The folders in it."""


@runtime_checkable
class HasAllowedHosts(Protocol):
    """A sandbox that can keep to a list of hosts."""

    @property
    def refused(self) -> Mapping[str, int]:
        """How often commands asked for an address that they may not reach, by `host:port`; readable after its end."""
        ...


@dataclass(frozen=True, slots=True)
class MachineSnapshot(abc.ABC):
    """A running machine as it was, with processes, memory and files. Its service keeps it. It can be pickled.

    Each sandbox that is made from it is a machine of its own, and continues there.
    """

    backend: str
    """The back end that made it."""
    image: str
    """The service's name for it."""
    until: float
    """Unix time after which it may be removed."""

    @abc.abstractmethod
    async def release(self) -> None:
        """Remove it, now or once nothing runs that was made from it. Safe to call twice. Raises SandboxError."""


SandboxState: TypeAlias = Snapshot | MachineSnapshot
"""What a sandbox continues from, as `SandboxPool.snapshot` returns it."""


class Process(Protocol):
    """A command that runs in a sandbox while other commands do."""

    async def send(self, data: bytes) -> None:
        """Write to its stdin. Raises BrokenPipeError once the command has closed it, or ended."""
        ...

    async def close_stdin(self) -> None: ...

    async def wait(self, timeout: float | None = None) -> ExecResult:
        """Its result when it ends. After `timeout` seconds it is killed, with its child processes."""
        ...

    async def kill(self) -> None:
        """Kill it with its child processes, even those that left its session. Safe to call twice."""
        ...


@runtime_checkable
class Sandbox(Protocol):
    """A machine for one episode. Enter it with `async with`; it is removed afterwards, with everything that runs in it.

    SandboxError means that the sandbox itself broke, or is not open. A missing file is FileNotFoundError instead, and a
    failing command is an ExecResult. `user` is the sandbox's own unprivileged user unless given; ConfigError means that
    the back end cannot act as another. A relative path starts in the folder where commands run.
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
        """Run a shell command and wait for it. After `timeout` seconds it is killed, with its child processes, even
        those that left its session.

        `stdin` is empty unless given. Of stdout and of stderr, `max_output` bytes are kept: the first half and the last
        half, with a mark between them. With `check`, CommandError is raised unless the command succeeded and its
        output is whole. `idempotent` allows a back end to send the command again after a lost connection. A missing
        `cwd` raises FileNotFoundError. When the caller is cancelled, the command is killed as at its timeout. The
        background processes of a command that ended live until the sandbox closes.
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
        """Start a shell command that runs while other commands do, with stdin open. It ends with the sandbox."""
        ...

    async def write_file(self, sandbox_path: str, content: FileContent, *, user: str | None = None) -> None:
        """Create or replace a file and its folders. Raises PermissionError, or OSError with ENOSPC when no room is
        left: never a partly written file without an error."""
        ...

    async def read_file(self, sandbox_path: str, *, user: str | None = None) -> str:
        """The whole file as text, with U+FFFD for bytes that are not UTF-8. Raises FileNotFoundError,
        IsADirectoryError, PermissionError."""
        ...

    async def read_bytes(self, sandbox_path: str, *, user: str | None = None, max_bytes: int = 64 << 20) -> bytes:
        """The whole file. Raises as `read_file` does, and OSError with EFBIG if it is longer than `max_bytes`."""
        ...

    async def upload(self, source: Path, sandbox_path: str, *, user: str | None = None) -> None:
        """Copy a file or a folder of this machine to `sandbox_path`, which is made if it is missing.

        The content of a folder is merged into it. Modes are kept. Links that stay inside the folder are kept as links;
        others are refused with ConfigError.
        """
        ...

    async def download(
        self, sandbox_path: str, target: Path, *, user: str | None = None, max_bytes: int = 256 << 20
    ) -> None:
        """Copy a file or a folder to this machine; a folder's content into `target`.

        The sandbox is not trusted. SandboxError is raised for entries that would be written outside `target`, links
        that lead out of it, and special files; OSError with EFBIG for more than `max_bytes` bytes. Then nothing is left
        in `target` that was not there before.
        """
        ...

    async def snapshot(self) -> Snapshot:
        """The files of the writable folders. No command may run meanwhile. Raises SandboxError naming a file that the
        sandbox's user cannot read."""
        ...

    async def restore(self, snapshot: Snapshot) -> None:
        """Restore the writable folders to the snapshot. Background processes are not killed first."""
        ...

    async def ping(self) -> None:
        """Raises SandboxError, with the reason, if commands can no longer run here."""
        ...
