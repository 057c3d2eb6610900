"""BubblewrapSandbox: Linux namespaces, which a bwrap process holds open and commands join."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import secrets
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentrl.errors import ConfigError, SandboxError
from agentrl.sandbox import OnOutput, SandboxKilledError
from agentrl_sandbox import owners
from agentrl_sandbox.base import ShellSandbox
from agentrl_sandbox.bubblewrap import registry, root, seccomp
from agentrl_sandbox.bubblewrap.box import Box
from agentrl_sandbox.bubblewrap.cgroups import NAME, Cgroups
from agentrl_sandbox.bubblewrap.process import BoxProcess, ProcessControl
from agentrl_sandbox.command import finish
from agentrl_sandbox.egress.listening import PORT, PROGRAM, handover, variables
from agentrl_sandbox.spec import SandboxSpec

_NAMESPACES = 0x10000000 | 0x20000 | 0x20000000 | 0x08000000 | 0x04000000 | 0x02000000
"""The flags of the namespaces that a command joins: user, mnt, pid, ipc, uts, cgroup."""
_NETWORK_NAMESPACE = 0x40000000
_USER_NAMESPACE = 0x10000000
_OPEN_FILES = 4096
_MOMENTS = 5


class BubblewrapSandbox(ShellSandbox):
    """See `Sandbox`. The only user is `agent`. The writable folders are in memory, and are lost when the sandbox
    closes."""

    kind = "bubblewrap"

    def __init__(self, spec: SandboxSpec) -> None:
        super().__init__(spec, f"bubblewrap-{secrets.token_hex(8)}")
        self._box: Box | None = None
        self._cgroups: Cgroups | None = None
        self._entry: registry.RegisteredBox | None = None
        self._processes: set[BoxProcess] = set()
        self._killed_for = ""

    @property
    def holders(self) -> Sequence[int]:
        """The process holding the box open, by process id inside the box. Commands run as the same user, so a command
        can end this process.
        """
        return [] if self._box is None else [self._box.holder()]

    async def _open(self) -> None:
        if self.spec.image:
            self.shell = await asyncio.to_thread(root.shell, self.spec.image)
        self._cgroups = Cgroups.make(f"{NAME}-{self.sandbox_id}", self.spec)
        files = root.etc()
        try:
            self._box = Box()
            await self._box.start(root.arguments(self.spec, files), files)
        finally:
            for file in files:
                os.close(file)
        if self._cgroups is not None:  # commands run as the same user and can make the first processes do anything
            self._cgroups.command().join(self._box.firsts())
        self._entry = registry.RegisteredBox(
            sandbox_id=self.sandbox_id,
            image=self.spec.image,
            owner=owners.current(),
            run=owners.run_name(),
            deadline=time.time() + self.spec.lifetime_s,
            pid=self._box.first,
            start=registry.start_of(self._box.first),
            cgroups=tuple(map(str, self._cgroups.folders)) if self._cgroups else (),
        )
        registry.write(self._entry)

    async def _listener(self) -> socket.socket:
        """See `ShellSandbox._listener`."""
        self._require_alive()
        assert self._box is not None
        uid = -1 if self._box.uid is None else self._box.uid
        place = map(str, (self._box.handle, _USER_NAMESPACE | _NETWORK_NAMESPACE, uid))
        async with handover() as way:
            program = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", "-c", PROGRAM, way.path, str(PORT), *place),
                pass_fds=[self._box.handle],
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
            )
            try:
                return await way.listener(_last_words(program))
            finally:
                with contextlib.suppress(ProcessLookupError):
                    program.kill()
                await finish(program.wait())

    async def _close(self) -> None:
        if self._box is not None:
            await self._box.end()
        for process in list(self._processes):
            await process.release()
        if self._cgroups is not None:
            await asyncio.to_thread(self._cgroups.remove)
        if self._entry is not None:
            await asyncio.to_thread(registry.end, self._entry)

    def _check_user(self, user: str) -> None:
        if user != "agent":
            raise ConfigError(f"bubblewrap sandboxes have one user, agent, and not {user!r}; use docker for others")

    async def _spawn(
        self, argv: Sequence[str], *, user: str, env: Mapping[str, str], cwd: str, stdin: bool, sink: OnOutput
    ) -> BoxProcess:
        self._require_alive()
        assert self._box is not None
        command = self._cgroups.command() if self._cgroups else None
        process = BoxProcess(sink, ProcessControl(command, self._check_alive, self._teller(), self._give_up))
        self._processes.add(process)
        process.released.add_done_callback(lambda _: self._processes.discard(process))
        order = self._order(argv, env, cwd, command.joins if command else ())
        try:
            refusal = await process.enter(order, self._box.handle, stdin=stdin)
        except OSError as exc:
            raise SandboxError(f"sandbox {self.sandbox_id} cannot start a command: {exc.strerror}") from exc
        except asyncio.CancelledError:
            await finish(process.kill())
            raise
        if refusal:
            await process.kill()
            await self._check_alive()
            raise self._refusal(refusal, argv[0], cwd)
        return process

    def _order(self, argv: Sequence[str], env: Mapping[str, str], cwd: str, joins: Sequence[str]) -> dict[str, Any]:
        """The settings of a command, as `enter.py` reads them."""
        assert self._box is not None
        base = {"PATH": self.tool_path, "LANG": "C.UTF-8", "HOME": "/tmp", **variables(self.spec.network)}
        size = self.spec.file_mb << 20
        limits = [(resource.RLIMIT_FSIZE, size), (resource.RLIMIT_CORE, 0), (resource.RLIMIT_NOFILE, _OPEN_FILES)]
        if self._cgroups is None:
            limits += [(resource.RLIMIT_NPROC, self.spec.pids), (resource.RLIMIT_DATA, self.spec.memory_mb << 20)]
        return {
            "uid": self._box.uid,
            "namespaces": _NAMESPACES | (_NETWORK_NAMESPACE if self.spec.network != "open" else 0),
            "cgroups": list(joins),
            "adopt": self._cgroups is None,
            "limits": limits,
            "filter": seccomp.program(),
            "cwd": cwd,
            "argv": [_plain(word) for word in argv],
            "env": {_plain(name): _plain(value) for name, value in (base | dict(self.spec.env) | dict(env)).items()},
        }

    def _refusal(self, refusal: str, program: str, cwd: str) -> Exception:
        number, _, subject = refusal.partition(" ")
        if subject == "cwd":
            return FileNotFoundError(errno.ENOENT, "no such folder in the sandbox", cwd)
        return SandboxError(f"sandbox {self.sandbox_id} cannot start {program}: {subject}: {os.strerror(int(number))}")

    def _teller(self) -> Callable[[], str]:
        """A function that returns a message if the kernel has killed processes of the box for lack of memory since
        now."""
        before = self._cgroups.killed_for_memory() if self._cgroups else 0

        def tell() -> str:
            if self._cgroups is None or self._cgroups.killed_for_memory() == before:
                return ""
            return f"killed: the sandbox's memory is used up (memory_mb={self.spec.memory_mb})\n"

        return tell

    def _require_alive(self) -> None:
        if self._box is None or not self._box.alive:
            if not self._killed_for and self._entry is not None and time.time() > self._entry.deadline:
                why = f"its lifetime_s={self.spec.lifetime_s:g} was over"
                raise SandboxError(f"sandbox {self.sandbox_id} was removed from outside: {why}")
            why = self._killed_for or self._why_ended()
            raise SandboxKilledError(f"sandbox {self.sandbox_id} was killed: {why}")

    def _why_ended(self) -> str:
        if self._cgroups is not None and self._cgroups.killed_for_memory():
            return f"its memory was used up (memory_mb={self.spec.memory_mb})"
        return "its own commands ended it, or it was removed"

    async def _check_alive(self) -> None:
        """Raises SandboxKilledError if the box has ended. The end may take a moment to be seen."""
        for _ in range(_MOMENTS):
            if self._state != "open":  # a closed box is reported elsewhere
                return
            self._require_alive()
            await asyncio.sleep(0.01)

    async def _give_up(self, why: str) -> None:
        self._killed_for = why
        if self._box is not None:
            await self._box.end()
        raise SandboxKilledError(f"sandbox {self.sandbox_id} was killed: {why}")


async def _last_words(program: asyncio.subprocess.Process) -> str:
    return (await program.communicate())[1].decode(errors="replace")


def _plain(text: str) -> str:
    """The text without lone surrogates, which no program accepts."""
    return text.encode(errors="replace").decode()
