"""A box: the namespaces of a sandbox, which a bwrap process holds open."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import select
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path

from agentrl.errors import SandboxError
from agentrl_sandbox.bubblewrap import seccomp
from agentrl_sandbox.output import Stream
from agentrl_sandbox.process import HostProcess

_READY_S = 30.0
_DYING_S = 5.0
_LONGEST_WORDS = 4000
_NOBODIES = range(1_600_000_000, 1_700_000_000)
"""Unused user ids of the host. If this process is root, each box has a user id from this range."""
INNER_UID = 1000
_PF_EXITING = 0x4
"""The flag in /proc/PID/stat of a process that exits; see include/linux/sched.h."""

ISOLATION = (
    *("--unshare-all", "--unshare-user", "--uid", str(INNER_UID), "--gid", str(INNER_UID), "--cap-drop", "ALL"),
    *("--disable-userns", "--die-with-parent", "--new-session", "--hostname", "sandbox", "--clearenv"),
)
HOLDER = ("/bin/sh", "-c", "echo ready; read _")
"""The program that holds the box open until stdin is closed: by `end`, or by the death of this process."""


def nobody() -> int | None:
    return random.choice(_NOBODIES) if os.geteuid() == 0 else None


class Box:
    """The bwrap process, the first process inside, and the handle for joining the box."""

    def __init__(self) -> None:
        self.uid = nobody()
        """The user id of the box on the host. None: the user id of this process."""
        self.first = 0
        """The process id of the box's first process on the host."""
        self.handle = -1
        """A pidfd of the process that holds the box open."""
        self._output = bytearray()
        self._ready = asyncio.Event()
        self._process = HostProcess(self._hear)

    async def start(self, arguments: Sequence[str], files: Sequence[int]) -> None:
        """Start bwrap and wait until the box is ready. Raises SandboxError with bwrap's output.

        If this fails or is cancelled, call `end`.
        """
        # For the box's first processes too: commands run as the same user and can control the first processes.
        filtering = memory(seccomp.program())
        arguments = (*ISOLATION, "--seccomp", str(filtering), *arguments)
        arguments_file = memory("\0".join(arguments))  # not in the command line, as the box can read the command line
        reading, writing = os.pipe()
        program = shutil.which("bwrap") or "bwrap"
        try:
            await self._process.start(
                [program, "--args", str(arguments_file), "--info-fd", str(writing), "--", *HOLDER],
                cwd="/",
                env={},
                stdin=True,
                pass_fds=(arguments_file, filtering, writing, *files),
                uid=self.uid,
            )
            await self._wait_until_ready()
            self.first = int(json.loads(os.read(reading, 4096))["child-pid"])
            self.handle = os.pidfd_open(_only_child(self.first))
        except OSError as exc:
            raise SandboxError(f"bwrap cannot make a sandbox: {exc}") from exc
        finally:
            for file in (arguments_file, filtering, reading, writing):
                os.close(file)

    def firsts(self) -> tuple[int, int]:
        """The process ids, on the host, of the box's first process and of the process that holds the box open."""
        return self.first, _only_child(self.first)

    def holder(self) -> int:
        """The process that holds the box open, as its process id inside the box. 0 if the process has ended."""
        with contextlib.suppress(OSError, IndexError):
            status = Path(f"/proc/{_only_child(self.first)}/status").read_text()
            return int(next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[-1])
        return 0

    @property
    def alive(self) -> bool:
        return self.handle >= 0 and not _has_ended(self.handle) and not _is_exiting(self.first)

    async def end(self) -> None:
        """Kill the box with all its processes, and wait for their end. Safe to call twice."""
        if self.first and not self._process.exited.done():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.first, signal.SIGKILL)  # not reused: the parent bwrap has not reaped the process
            await asyncio.wait([self._process.exited], timeout=_DYING_S)
        await self._process.kill()
        await self._process.release()
        if self.handle >= 0:
            os.close(self.handle)
            self.handle = -1

    async def _wait_until_ready(self) -> None:
        released = self._process.released
        released.add_done_callback(lambda _: self._ready.set())
        try:
            async with asyncio.timeout(_READY_S):
                await self._ready.wait()
        except TimeoutError:
            raise SandboxError(f"bwrap made no sandbox within {_READY_S:.0f} s") from None
        if released.done():
            output = " ".join(self._output.decode(errors="replace").split())
            raise SandboxError(f"bwrap cannot make a sandbox: {output or 'it ended without a word'}")

    def _hear(self, stream: Stream, data: bytes) -> None:
        self._output += data[: _LONGEST_WORDS - len(self._output)]  # commands inside can write to the pipe as well
        if stream == "stdout" and b"ready" in self._output:
            self._ready.set()


def memory(content: str | bytes) -> int:
    """A descriptor of a file in memory with this content, positioned at the start."""
    number = os.memfd_create("agentrl")
    os.write(number, content.encode() if isinstance(content, str) else content)
    os.lseek(number, 0, os.SEEK_SET)
    return number


def _only_child(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def _has_ended(handle: int) -> bool:
    """Whether the process of a pidfd has ended."""
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(0))


def _is_exiting(pid: int) -> bool:
    """Whether a process has begun to exit, or is gone.

    The box's first process begins to exit before the kernel kills the rest. So a command killed with the box never sees
    the box alive, however busy the host is.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return True
    return bool(int(fields[6]) & _PF_EXITING)
