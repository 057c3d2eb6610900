"""Where attacks take place: a sandbox to attack from, a neighbour, and this machine, which are to stay unharmed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import shlex
import time
from collections.abc import AsyncIterator
from pathlib import Path

from agentrl.errors import SandboxError
from agentrl.sandbox import ExecResult, Sandbox
from agentrl_sandbox.spec import SandboxSpec
from tests.sandbox.engine import fitted

ISOLATED = ("bubblewrap", "docker")
"""Back ends that hold what a model wrote. `local` isolates nothing, and `fake` runs nothing."""

SERVED = (*ISOLATED, "e2b")
"""For attacks on files and verdicts, which leave the sandbox. What its machine isolates is for the service to test."""

SMALL = SandboxSpec(memory_mb=64, pids=64, disk_mb=16, file_mb=8, cpus=0.5)

SCRIPTS = Path(__file__).with_name("scripts")
_MB = 1 << 20
_ANSWER_S = 10.0
"""A command takes a tenth of a second, on a machine where nothing else happens."""
_MOST_PROCESSES = 400  # others work on this machine, too; an attack makes thousands
_MOST_MEMORY = 2000 * _MB  # an attack takes 3 GB; other tests load torch beside it
_MOST_DISK = 1000 * _MB  # an attack writes 2 GB


class Machine:
    """This machine as it was before the attack."""

    def __init__(self, token: str) -> None:
        self._token = token
        self._processes, self._memory, self._disk = _processes(), available_memory(), _free_disk()

    async def check(self) -> None:
        """It is soon about as it was, and has nothing of the attack."""
        assert await soon(lambda: _processes() - self._processes < _MOST_PROCESSES)
        assert await soon(lambda: self._memory - available_memory() < _MOST_MEMORY)
        assert all(before - _free_disk()[path] < _MOST_DISK for path, before in self._disk.items())
        for folder in ("/", "/tmp", "/work", "/dev", "/dev/shm", "/usr", "/etc", "/var/tmp", "/proc", os.getcwd()):
            with contextlib.suppress(FileNotFoundError):
                assert not [name for name in os.listdir(folder) if self._token in name]

    def processes(self) -> int:
        """How many processes of the attack there are on it."""
        return sum(self._token.encode() in line for line in _command_lines())

    async def cleared(self) -> bool:
        """Whether soon none of them is left."""
        return await soon(lambda: not self.processes())


class Arena:
    def __init__(self, box: Sandbox, neighbour: Sandbox, token: str, machine: Machine) -> None:
        self.box, self.neighbour, self.token, self.machine = box, neighbour, token, machine

    async def attack(self, script: str, *args: str, timeout: float = 20, **options) -> ExecResult:
        """Run a script of `scripts/` in the sandbox, as its user."""
        command = shlex.join(["python3", "-c", text_of(script), self.token, *args])
        return await self.box.exec(f"exec {command}", timeout=timeout, **options)

    async def tries(self, script: str, *args: str, **options) -> dict[str, str]:
        """What `attempt` of `scripts/common.py` printed: the error by the name of what was tried."""
        result = await self.attack(script, *args, **options)
        assert result.exit_code == 0, result
        return dict(line.split("\t", 1) for line in result.stdout.splitlines())

    async def usable(self) -> str:
        """ "usable" if the sandbox runs commands, else what it says instead. It says either soon."""
        try:
            async with asyncio.timeout(3 * _ANSWER_S):
                await self.box.exec(":", check=True)
        except SandboxError as exc:
            return f"{type(exc).__name__}: {exc}"
        return "usable"

    async def check_neighbour(self) -> None:
        begun = time.monotonic()
        assert (await self.neighbour.exec("cat mine; ls | wc -l", check=True)).stdout == f"{self.token[::-1]}1\n"
        assert time.monotonic() - begun < _ANSWER_S


@contextlib.asynccontextmanager
async def arena(backend, spec: SandboxSpec) -> AsyncIterator[Arena]:
    """Opens the two sandboxes. At the end, the neighbour and the machine must be unharmed."""
    token = f"attack{secrets.token_hex(6)}"
    machine = Machine(token)
    async with contextlib.AsyncExitStack() as stack:
        boxes = [backend.sandbox(fitted(backend.name, one)) for one in (spec, SMALL)]
        await asyncio.gather(*(stack.enter_async_context(box) for box in boxes))
        await boxes[1].write_file("mine", token[::-1])
        field = Arena(*boxes, token, machine)
        yield field
        await field.check_neighbour()
        await machine.check()
    assert await machine.cleared(), "processes of the attack outlive its sandbox"
    await machine.check()


async def soon(condition, within: float = 10.0) -> bool:
    end = time.monotonic() + within
    while time.monotonic() < end:
        if condition():
            return True
        await asyncio.sleep(0.05)
    return condition()


def text_of(script: str) -> str:
    """A script as one text: `scripts/common.py` stands in it in place of being imported."""
    common, own = ((SCRIPTS / f"{name}.py").read_text() for name in ("common", script))
    return common + re.sub(r"^from common import .*$", "", own, flags=re.MULTILINE)


def available_memory() -> int:
    """Of this machine, in bytes."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    raise AssertionError("no MemAvailable")


def own_memory() -> int:
    """Of this process, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def _processes() -> int:
    return sum(name.isdecimal() for name in os.listdir("/proc"))


def _command_lines() -> list[bytes]:
    lines = []
    for name in os.listdir("/proc"):
        if name.isdecimal() and name != str(os.getpid()):
            with contextlib.suppress(OSError):
                lines.append(Path(f"/proc/{name}/cmdline").read_bytes())
    return lines


def _free_disk() -> dict[str, int]:
    return {path: (found := os.statvfs(path)).f_bavail * found.f_frsize for path in ("/", "/tmp", "/var/tmp")}
