"""A command on this machine: in a process group of its own, its output bounded while it is read."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from agentrl.sandbox import TIMED_OUT, ExecResult

_DYING_S = 5.0
"""How long to wait for the end of a killed process. It takes longer than an instant only if it hangs in the kernel."""

_TRAILING_S = 0.25
"""How long to wait for output after the end of a command, if a background process still holds its pipes."""


class Process(asyncio.SubprocessProtocol):
    """One process, with the first `max_output` bytes of each of stdout and stderr; the rest is read and dropped."""

    def __init__(self, max_output: int) -> None:
        loop = asyncio.get_running_loop()
        self.exited: asyncio.Future[int] = loop.create_future()
        self.released: asyncio.Future[None] = loop.create_future()
        """Done when the process is gone and its pipes are closed too: nothing is left to release."""
        self._max_output = max(max_output, 0)
        self._output = {1: bytearray(), 2: bytearray()}
        self._truncated = False
        self._unwanted = False
        self._transport: asyncio.SubprocessTransport | None = None

    async def start(
        self, argv: Sequence[str | bytes], *, cwd: str, env: Mapping[str, str], stdin: bytes | None
    ) -> None:
        """Start the program and hand it `stdin`. Raises OSError when there is no process to be had."""
        try:
            transport, _ = await asyncio.get_running_loop().subprocess_exec(
                lambda: self,
                *argv,
                stdin=asyncio.subprocess.DEVNULL if stdin is None else asyncio.subprocess.PIPE,
                cwd=cwd,
                env=env,
                start_new_session=True,
            )
        except (OSError, ValueError):
            self.exited.cancel()
            self.released.cancel()
            raise
        if stdin is not None:
            pipe = cast(asyncio.WriteTransport, transport.get_pipe_transport(0))
            pipe.write(stdin)
            pipe.write_eof()

    async def wait(self, timeout: float) -> ExecResult:
        """The result within `timeout` seconds. The process is dead afterwards, even if the caller is cancelled."""
        try:
            done, _ = await asyncio.wait([self.exited], timeout=timeout)
        finally:
            self.kill()
        await asyncio.wait([self.exited], timeout=_DYING_S)
        await asyncio.wait([self.released], timeout=_TRAILING_S)
        stdout, stderr = (bytes(kept).decode(errors="replace") for kept in self._output.values())
        code = self.exited.result() if done else TIMED_OUT
        return ExecResult(
            128 - code if code < 0 else code, stdout, stderr, timed_out=not done, truncated=self._truncated
        )

    def kill(self) -> None:
        """Kill the process and its group, as soon as it runs. A process that has ended is left alone."""
        self._unwanted = True
        if self._transport is not None and not self.exited.done():
            with contextlib.suppress(ProcessLookupError):  # it has ended, but the loop does not know yet
                os.killpg(self._transport.get_pid(), signal.SIGKILL)

    async def release(self) -> None:
        """Close the pipes of a killed process, even if a background process still holds them."""
        await asyncio.wait([self.exited], timeout=_DYING_S)
        if self._transport is not None:
            self._transport.close()
        await asyncio.wait([self.released], timeout=_DYING_S)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.SubprocessTransport, transport)
        if self._unwanted:
            self.kill()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        kept = self._output[fd]
        room = self._max_output - len(kept)
        kept += data[:room]
        self._truncated |= len(data) > room

    def process_exited(self) -> None:
        assert self._transport is not None
        self.exited.set_result(cast(int, self._transport.get_returncode()))

    def connection_lost(self, exc: Exception | None) -> None:
        assert self._transport is not None
        self._transport.close()
        self.released.set_result(None)


def kill_all(variable: str, value: str, root: Path) -> None:
    """Kill the processes of a sandbox that left their process group, and wait until there are none.

    They are those that inherited `variable=value`, those that have no terminal and work in a folder below `root`, and
    the children of either. It needs /proc: without one, as on macOS, it finds nothing.
    """
    mark = f"{variable}={value}".encode()
    deadline = time.monotonic() + _DYING_S
    while (pids := belonging(mark, root)) and time.monotonic() < deadline:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def belonging(mark: bytes, root: Path) -> set[int]:
    """The processes that `kill_all` kills. A person's shell that looks around below `root` has a terminal: not it."""
    parents: dict[int, int] = {}
    found: set[int] = set()
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if not name.isdecimal():
            continue
        with contextlib.suppress(OSError):  # gone meanwhile, or another user's
            state, parent, terminal = _status(Path("/proc", name))
            if state == "Z":  # dead; only its parent can bury it
                continue
            parents[int(name)] = parent
            if _is_marked(Path("/proc", name), mark) or (not terminal and _works_below(Path("/proc", name), root)):
                found.add(int(name))
    found.discard(os.getpid())
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def _status(process: Path) -> tuple[str, int, int]:
    """Its state, its parent and its terminal (0: none)."""
    fields = (process / "stat").read_text().rpartition(")")[2].split()
    return fields[0], int(fields[1]), int(fields[4])


def _is_marked(process: Path, mark: bytes) -> bool:
    return mark in (process / "environ").read_bytes().split(b"\0")


def _works_below(process: Path, root: Path) -> bool:
    folder = Path(os.readlink(process / "cwd"))
    return folder == root or root in folder.parents
