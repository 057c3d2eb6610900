"""A sandbox without isolation: subprocesses in a temporary folder, for trusted code on your own machine."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import logging
import os
import pwd
import secrets
import shutil
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from agentrl.errors import ConfigError, SandboxError
from agentrl.sandbox import OnOutput
from agentrl_sandbox.base import ShellSandbox
from agentrl_sandbox.paths import absolute
from agentrl_sandbox.process import HostProcess
from agentrl_sandbox.spec import SandboxSpec

log = logging.getLogger(__name__)

_MARK = "AGENTRL_SANDBOX"
"""The environment variable that marks a sandbox's processes, including processes that left their process group."""
_COMMAND = "AGENTRL_COMMAND"
"""The environment variable that marks the processes of a command."""

_DYING_S = 5.0
_LIMITED = 'ulimit -c 0; ulimit -f {blocks}; ulimit -d {kilobytes}; exec "$@"'
"""Shell code that sets limits for each process: no core files, the size of a file, memory. A limit cannot exceed the
host's limit."""


class LocalSandbox(ShellSandbox):
    """NO ISOLATION. Commands run on this machine, as you, and can read, change and delete all your files.

    Use this sandbox for code you would run in your own shell: your tests, a demo, a harmless Env. Never run code from a
    model here. Code from a model needs a back end with containers. `trusted=True` confirms that you know this.

    The sandbox gives a temporary folder as root, an environment without your variables (PATH stays; no API key is
    inherited), and limits of memory and file size for each process (`spec.memory_mb`, `file_mb`; no other limit of the
    spec is enforced). Closing kills the started processes and removes the folder.

    A process survives closing only if it has dropped its environment, left the folder and lost its parent. A timeout
    kills the processes with the environment or in the process group. Without /proc, as on macOS, only process groups
    are killed. A SIGKILL of this process closes no sandbox.

    The methods for files, and `cwd`, take paths from the sandbox's root: "/workspace/x" is `<root>/workspace/x`, `..`
    stops at the root, and a symbolic link leading out raises PermissionError. A *command* sees the host's paths, so
    write commands with relative paths. Commands start in `cwd`, or in `spec.workdir`: the root, unless a spec is given.

    All commands run as your user. `user` may name your user, or be "root" or `spec.user`, the protocol's words for the
    sandbox's owner. Other users raise ConfigError, as a local sandbox cannot separate users.
    """

    kind = "local"

    def __init__(self, spec: SandboxSpec | None = None, *, trusted: bool = False) -> None:
        if not trusted:
            raise ConfigError(
                "LocalSandbox isolates nothing: commands run on this machine as you; "
                "pass trusted=True if the code is yours, or use a sandbox with containers"
            )
        super().__init__(spec or SandboxSpec(workdir="/"), f"local-{secrets.token_hex(6)}")
        self.shell = (shutil.which("bash") or "/bin/sh", "-c")
        self.tool_path = os.environ.get("PATH", os.defpath)
        self._root: Path | None = None
        self.processes: set[LocalProcess] = set()
        self._numbers = itertools.count()

    @property
    def root(self) -> Path:
        """The folder on this machine that is the sandbox's root."""
        if self._root is None:
            raise SandboxError(f"sandbox {self.sandbox_id} is not open; use it within `async with`")
        return self._root

    async def _open(self) -> None:
        log.warning("sandbox %s isolates nothing: commands run on this machine as you", self.sandbox_id)
        self._root = _make_folder(f"agentrl-{self.sandbox_id}-")
        os.makedirs(self._resolve("."), exist_ok=True)

    async def _close(self) -> None:
        if self._root is None:
            return
        for process in self.processes:
            process.kill_group()
        try:
            await asyncio.to_thread(self._destroy, self._root)
        finally:
            await asyncio.gather(*(process.release() for process in self.processes))

    def _destroy(self, root: Path) -> None:
        _kill_all({f"{_MARK}={self.sandbox_id}".encode()}, root)
        _remove(root)

    def _check_user(self, user: str) -> None:
        if user not in ("root", self.spec.user, me := _current_user()):
            raise ConfigError(
                f"LocalSandbox runs everything as {me!r} and cannot act as {user!r}; "
                "leave `user` out, or use a sandbox with containers"
            )

    def _folders(self) -> tuple[str, ...]:
        return (absolute(self.spec.workdir),)

    def _resolve(self, sandbox_path: str) -> str:
        """The path on this machine, with all links followed."""
        real = os.path.realpath(f"{self.root}{super()._resolve(sandbox_path)}")
        if not Path(real).is_relative_to(self.root):
            raise PermissionError(errno.EACCES, "the path leads out of the sandbox", sandbox_path)
        return real

    async def _spawn(
        self, argv: Sequence[str], *, user: str, env: Mapping[str, str], cwd: str, stdin: bool, sink: OnOutput
    ) -> LocalProcess:
        if not os.path.isdir(cwd):  # noqa: ASYNC240 - quick
            raise FileNotFoundError(errno.ENOENT, "no such folder in the sandbox", cwd)
        marks = {_MARK: self.sandbox_id, _COMMAND: str(next(self._numbers))}
        process = LocalProcess(sink, {f"{name}={value}".encode() for name, value in marks.items()})
        self.processes.add(process)
        process.released.add_done_callback(lambda _: self.processes.discard(process))
        limits = _LIMITED.format(blocks=self.spec.file_mb << 11, kilobytes=self.spec.memory_mb << 10)
        base = {"PATH": self.tool_path, "LANG": "C.UTF-8", "HOME": str(self.root)}
        try:
            await process.start(
                ["/bin/sh", "-c", limits, "sh", *(word.encode(errors="replace") for word in argv)],
                cwd=cwd,
                env=base | dict(self.spec.env) | dict(env) | marks,
                stdin=stdin,
            )
        except OSError as exc:
            raise SandboxError(f"sandbox {self.sandbox_id} cannot start a shell: {exc.strerror}") from exc
        return process


class LocalProcess(HostProcess):
    """A command whose processes are marked by an environment variable."""

    def __init__(self, sink: OnOutput, marks: set[bytes]) -> None:
        super().__init__(sink)
        self._marks = marks

    async def kill(self) -> None:
        """See `Running.kill`."""
        if self.exited.done():
            return
        self.kill_group()
        await asyncio.to_thread(_kill_all, self._marks, None)
        await super().kill()


def _make_folder(prefix: str) -> Path:
    """Create a temporary folder. Links in its path are resolved, as a path with links would look like a path out of the
    sandbox."""
    return Path(os.path.realpath(tempfile.mkdtemp(prefix=prefix)))


def _current_user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # in a container, a user may have a number and no name
        return str(os.getuid())


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


def _kill_all(marks: set[bytes], root: Path | None) -> None:
    """Kill the processes that `belonging` lists, and wait until all are gone.

    Without /proc, as on macOS, no process is killed.
    """
    deadline = time.monotonic() + _DYING_S
    while (pids := belonging(marks, root)) and time.monotonic() < deadline:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def belonging(marks: set[bytes], root: Path | None) -> set[int]:
    """The processes of a sandbox, of three kinds: processes with all `marks` (`NAME=value`) in the environment;
    processes without a terminal and with a working folder below `root`; and the children of these two kinds.

    A person's shell below `root` has a terminal, and is spared.
    """
    parents: dict[int, int] = {}
    pids: set[int] = set()
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if not name.isdecimal():
            continue
        with contextlib.suppress(OSError):  # gone meanwhile, or of a different user
            state, parent, terminal = _status(Path("/proc", name))
            if state == "Z":  # a zombie; only the parent can reap a zombie
                continue
            parents[int(name)] = parent
            if _is_marked(Path("/proc", name), marks) or (not terminal and _works_below(Path("/proc", name), root)):
                pids.add(int(name))
    pids.discard(os.getpid())
    while more := {pid for pid, parent in parents.items() if parent in pids} - pids:
        pids |= more
    return pids


def _status(process: Path) -> tuple[str, int, int]:
    """State, parent and terminal of a process (0: no terminal)."""
    fields = (process / "stat").read_text().rpartition(")")[2].split()
    return fields[0], int(fields[1]), int(fields[4])


def _is_marked(process: Path, marks: set[bytes]) -> bool:
    return marks <= set((process / "environ").read_bytes().split(b"\0"))


def _works_below(process: Path, root: Path | None) -> bool:
    if root is None:
        return False
    folder = Path(os.readlink(process / "cwd"))
    return folder == root or root in folder.parents
