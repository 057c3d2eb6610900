"""A command in a box: the program `enter.py` outside, and the command's processes inside."""

from __future__ import annotations

import asyncio
import contextlib
import marshal
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any

from agentrl.sandbox import OnOutput
from agentrl_sandbox.bubblewrap.cgroups import CommandCgroup
from agentrl_sandbox.process import HostProcess

_PROGRAM = "import marshal, sys; o = marshal.load(open(int(sys.argv[1]), 'rb')); exec(o['program']); main(o)"
"""Runs `enter.py`, which is compiled here once: to compile the file takes a quarter of the program's CPU time."""
_SIGKILLED = 128 + 9
_DYING_S = 5.0


@dataclass(frozen=True, slots=True)
class ProcessControl:
    """Callbacks of the sandbox for a command."""

    cgroup: CommandCgroup | None
    check_alive: Callable[[], Awaitable[None]]
    """Raises SandboxKilledError if the box has ended."""
    why_killed: Callable[[], str]
    """The message for a command that the kernel killed; empty if the kernel killed no process."""
    give_up: Callable[[str], Awaitable[None]]
    """Kills the sandbox if a command cannot be killed. Raises SandboxKilledError with the reason."""


class BoxProcess(HostProcess):
    """See `Running`."""

    def __init__(self, sink: OnOutput, control: ProcessControl) -> None:
        super().__init__(sink)
        self._control = control
        self._reported = False

    async def enter(self, order: Mapping[str, Any], box: int, *, stdin: bool) -> str:
        """Start the command in the box with the pidfd `box`. Returns an empty text once the command runs, else the
        error message.
        """
        reading, writing = os.pipe()
        order_file = os.memfd_create("agentrl-order")
        try:
            os.write(order_file, marshal.dumps({**order, "program": _compiled(), "box": box, "said": writing}))
            os.lseek(order_file, 0, os.SEEK_SET)
            await self.start(
                [sys.executable, "-I", "-S", "-c", _PROGRAM, str(order_file)],
                cwd="/",
                env={},
                stdin=stdin,
                pass_fds=(order_file, box, writing),
            )
            os.close(writing)
            writing = -1
            return (await _read(reading)).decode(errors="replace")
        finally:
            for file in (reading, writing, order_file):
                if file >= 0:
                    os.close(file)

    async def ended(self) -> int:
        """See `Running.ended`."""
        code = await super().ended()
        if code == _SIGKILLED:
            await self._control.check_alive()
            if not self._reported and (reason := self._control.why_killed()):
                self._reported = True
                self._sink("stderr", reason.encode())
        if self._control.cgroup is not None:
            self._control.cgroup.remove()
        return code

    async def kill(self) -> None:
        """See `Running.kill`."""
        if self.exited.done() and not self.exited.cancelled():
            return
        dead = await asyncio.to_thread(self._kill_tree)
        await super().kill()
        if self._control.cgroup is not None:  # once more: the command may have joined just now
            dead = await asyncio.to_thread(self._control.cgroup.kill)
            self._control.cgroup.remove()
        if not dead:
            await self._control.give_up("a command could not be killed")

    def _kill_tree(self) -> bool:
        if self._control.cgroup is not None:
            return self._control.cgroup.kill()
        return self._transport is None or _kill_below(self.pid)


@cache
def _compiled() -> CodeType:
    path = Path(__file__).with_name("enter.py")
    return compile(path.read_text(encoding="utf-8"), str(path), "exec")


async def _read(file: int) -> bytes:
    """All data from a pipe until the other end is closed."""
    loop, received = asyncio.get_running_loop(), bytearray()
    done: asyncio.Future[None] = loop.create_future()

    def take() -> None:
        data = os.read(file, 4096)
        received.extend(data)
        if not data and not done.done():
            done.set_result(None)

    loop.add_reader(file, take)
    try:
        await done
    finally:
        loop.remove_reader(file)
    return bytes(received)


def _kill_below(entering: int) -> bool:
    """Kill the descendants of `enter.py` if there are no cgroups. The child of `enter.py` adopts orphans, so the child
    is stopped first."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(entering, signal.SIGSTOP)
        deadline = time.monotonic() + _DYING_S
        while pids := _below(entering):
            adopting, *others = pids
            os.kill(adopting, signal.SIGSTOP if others else signal.SIGKILL)
            for pid in others:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() > deadline:
                return False
            time.sleep(0.002)
    return True


def _below(pid: int) -> list[int]:
    """The descendants of a process, parents before their children."""
    children: dict[int, list[int]] = {}
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            fields = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()
            if fields[0] not in "ZX":
                children.setdefault(int(fields[1]), []).append(int(name))
    descendants = list(children.get(pid, ()))
    for descendant in descendants:  # grows meanwhile
        descendants += children.get(descendant, ())
    return descendants
