"""A sandbox of a hosted service, through an object with slime's protocol."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any, ClassVar, Protocol

from agentrl.errors import ConfigError, SandboxError, one_line
from agentrl.sandbox import OnOutput, SandboxKilledError
from agentrl_sandbox.base import ShellSandbox
from agentrl_sandbox.hosted import scripts
from agentrl_sandbox.hosted.process import HostedProcess
from agentrl_sandbox.paths import absolute
from agentrl_sandbox.spec import SandboxSpec

log = logging.getLogger("agentrl")

_told: set[str] = set()
_SETUP_S = 120.0
_GIVING_UP_S = 30.0
_KILLED = (-1, 128 + 9, 128 + 15)
"""Exit codes if the shell of a request was killed. While the machine runs, only programs in the machine kill this
shell."""
_LIMITS = "ulimit -c 0; ulimit -f {blocks}; ulimit -d {kilobytes}; ulimit -u {pids} 2>/dev/null || ulimit -p {pids}"


class SandboxService(Protocol):
    """The protocol `slime.agent.sandbox.Sandbox` of slime."""

    sandbox_id: str

    async def __aenter__(self) -> Any: ...

    async def __aexit__(self, exc_type: Any, exc: Any, tb: Any) -> None: ...

    async def exec(
        self,
        cmd: str,
        *,
        user: str = "root",
        env: dict[str, str] | None = None,
        timeout: int = 120,
        check: bool = False,
        idempotent: bool = True,
    ) -> tuple[int, str, str]: ...

    async def write_file(self, sandbox_path: str, content: str | bytes | Path, *, user: str = "root") -> None: ...


class HostedSandbox(ShellSandbox):
    """A machine of a hosted service. Commands run through short requests, which may be sent twice without harm.

    Requests run as root only to create the user and the work folder, and to kill a command. When the sandbox is open,
    `sandbox_id` ends with the id of the service.
    """

    kind = "hosted"
    cuts_network: ClassVar[bool] = False
    """Whether the service can start machines without internet access."""

    def __init__(self, spec: SandboxSpec, service: SandboxService) -> None:
        self._check(spec)
        super().__init__(spec, f"{self.kind}-{secrets.token_hex(4)}")
        self.service = service
        self._entering: asyncio.Future[Any] | None = None
        self._folder, self._word = "", secrets.token_hex(4)
        self._running: list[HostedProcess] = []

    def _tell_loosened(self) -> None:
        super()._tell_loosened()
        if self.kind not in _told:
            _told.add(self.kind)
            log.warning(
                "%s sandboxes: cpus, disk and the memory together are as the service gives them to each machine",
                self.kind,
            )

    @property
    def is_open(self) -> bool:
        return self._state == "open"

    @property
    def is_closed(self) -> bool:
        return self._state == "closed"

    def _check(self, spec: SandboxSpec) -> None:
        """Raises ConfigError for settings that the service does not enforce."""
        problems = []
        if not spec.image:
            problems.append("name an image of the service")
        if spec.hosts:
            problems.append("write network: open, as the proxy of a list of hosts is not reached from there")
        elif spec.network != "open" and not self.cuts_network:
            problems.append("write network: open, as a machine's network is as its service leaves it")
        if spec.read_only:
            problems.append("write read_only: false, as its root is writable")
        if spec.sockets:
            problems.append("leave sockets out, as nothing of this machine can be mounted there")
        if problems:
            raise ConfigError(f"{self.kind} sandboxes: {'; '.join(problems)}")

    async def _open(self) -> None:
        # Shielded, because an interrupted creation may leave an unknown machine.
        self._entering = asyncio.ensure_future(self.service.__aenter__())
        try:
            await asyncio.shield(self._entering)
        except Exception as exc:  # the service's boundary
            raise SandboxError(f"{self.sandbox_id}: the service made no machine: {_said(exc)}") from exc
        self.sandbox_id = f"{self.kind}-{self.service.sandbox_id}"
        args = " ".join(map(quote, (self.spec.user, absolute(self.spec.workdir), self._word)))
        answer = await self._ask(f"sh -c {quote(scripts.SETUP)} sh {args}", _SETUP_S, "root")
        if (match := re.search(r"<(/[\w/]+/agentrl)>", answer)) is None:
            raise SandboxError(
                f"sandbox {self.sandbox_id}: image {self.spec.image!r} cannot be used: "
                f"{answer.strip() or 'no answer'}; it needs root, the user {self.spec.user} or useradd, coreutils, "
                "grep, tar, find and setsid"
            )
        self._folder = match[1]

    async def _close(self) -> None:
        if self._entering is None:
            return
        for process in self._running:
            process.abandon()
        try:
            await asyncio.wait([self._entering])
            if self._entering.cancelled() or self._entering.exception() is not None:
                return
            await self.service.__aexit__(None, None, None)
        except Exception as exc:  # noqa: BLE001 - the service's boundary: the service's time limit ends the machine
            log.warning(
                "sandbox %s could not be removed, and lasts until its service ends it: %s",
                self.sandbox_id,
                _said(exc),
            )

    async def _spawn(
        self, argv: Sequence[str], *, user: str, env: Mapping[str, str], cwd: str, stdin: bool, sink: OnOutput
    ) -> HostedProcess:
        async def ask(script: str, seconds: float, as_root: bool) -> str:
            return await self._ask(script, seconds, "root" if as_root else user)

        async def write(path: str, content: bytes) -> None:
            await self._asked(self.service.write_file(path, content, user=user), "write_file")

        process = HostedProcess(f"{self._folder}/c{self._word}{secrets.token_hex(8)}", ask, write, sink, self._give_up)
        done = [running for running in self._running if running.finished]
        self._running = [running for running in self._running if not running.finished] + [process]
        spec = self.spec
        await process.start(
            argv,
            env={"LANG": "C.UTF-8", **spec.env, **env},
            cwd=cwd,
            stdin=stdin,
            limits=_LIMITS.format(blocks=spec.file_mb << 11, kilobytes=spec.memory_mb << 10, pids=spec.pids),
            finished=[running.folder for running in done],
        )
        return process

    async def _ask(self, script: str, seconds: float, user: str) -> str:
        request = self.service.exec(script, user=user, timeout=round(seconds), check=False, idempotent=True)
        code, stdout, stderr = await self._asked(request, "exec")
        if code in _KILLED:
            raise SandboxKilledError(f"sandbox {self.sandbox_id}: something in it killed a request (exit code {code})")
        return stdout if code == 0 else f"{stdout}{stderr}"

    async def _asked(self, request: Any, request_name: str) -> Any:
        try:
            return await request
        except Exception as exc:  # the service's boundary: each service has its own errors
            raise SandboxError(
                f"sandbox {self.sandbox_id}: {request_name} failed at its service: {_said(exc)}"
            ) from exc

    async def _give_up(self) -> None:
        """End the machine with all its processes."""
        if self._state == "open":
            self._state = "closed"
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_GIVING_UP_S):
                    await self._close()


def _said(exc: Exception) -> str:
    return str(exc) if isinstance(exc, SandboxError) else one_line(exc)
