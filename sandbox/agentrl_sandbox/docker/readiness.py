"""Start a sandbox's services in the order of their dependencies, and wait until all are ready or a service fails."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

from aiodocker import DockerError

from agentrl._util.concurrency import gather
from agentrl.errors import ConfigError, SandboxError
from agentrl_sandbox.docker.engine import exit_code
from agentrl_sandbox.docker.services import SiblingContainers, Whole
from agentrl_sandbox.services import MAIN, StartedAs

_SHOWN = 10
"""The most lines of a service's log in an error message."""
_POLL_S, _LONGEST_POLL_S = 0.1, 1.0
_SURE_S = 0.5
"""Seconds after the start for which a service without a health check must run, so that it counts as running."""
_SECOND = 1_000_000_000
_CHECK_S = 10.0
_MUTE_S = 30.0
"""Seconds after which a service that passes its health check counts as healthy, although it listens at no declared
port."""
_LISTENERS = ("cat", "/proc/net/tcp", "/proc/net/tcp6")
_LISTENS = "0A"
_OWN_V4, _OWN_V6 = "7F", "0" * 24 + "01000000"
"""The last hex digits of loopback addresses in /proc/net/tcp and tcp6, which only the service itself can reach.
_OWN_V4: 127.0.0.0/8. The kernel writes the bytes of an IPv4 address in reverse order, so 127 (7F) comes last.
_OWN_V6: ::1, all 32 digits."""


class ServiceStart:
    """Starts the services of a sandbox once."""

    def __init__(self, siblings: SiblingContainers, whole: Whole) -> None:
        self._siblings, self._whole = siblings, whole
        self._id, self._group, self._docker = siblings.sandbox_id, siblings.group, siblings.docker
        self._started = {name: asyncio.Event() for name in self._group.services}
        self._healthy = set[str]()
        """The names of services that count as healthy."""
        self._passing: dict[str, float] = {}
        """Unreachable services with a passed check, and the time of the first pass."""
        self._last = 0.0
        """The time when the last service was started."""

    async def run(self) -> None:
        """Start all services. Raises SandboxError, with the end of the service's log, if a service does not start,
        fails, or is not ready in time."""
        if not self._group.services:
            return
        try:
            async with asyncio.timeout(self._group.ready_s) as deadline:
                await gather(self._bring_up(name) for name in self._group.services)
                await asyncio.sleep(max(0.0, self._last + _SURE_S - time.monotonic()))
                after = self._group.main.after
                await gather(self._until(name, after.get(name)) for name in self._group.services)
                await gather(self._until(name, None) for name in self._group.services)
        except TimeoutError:
            if not deadline.expired():
                raise
            late = [name for name in self._group.services if not await self._is_ready(name)]
            slow = (late or list(self._group.services))[0]
            raise await self._failure(slow, f"was not ready within {self._group.ready_s:g} s") from None

    async def _bring_up(self, name: str) -> None:
        service = self._group.services[name]
        waited = dict(service.after)
        if service.within:
            waited.setdefault(service.within, "started")
        for other, how in waited.items():
            if other != MAIN:
                await self._started[other].wait()
                await self._until(other, how)
        try:
            await self._whole(self._docker.containers.container(self._siblings.name(name)).start())
        except DockerError as exc:
            raise SandboxError(f"sandbox {self._id}: its service {name} does not start: {_line(exc)}") from exc
        self._last = time.monotonic()
        self._started[name].set()
        await self._until(name, None)

    async def _until(self, name: str, how: StartedAs | None) -> None:
        """Wait until a service is in the state `how`, which another service needs; None: until the service is ready."""
        pause = _POLL_S
        while not await self._is_so(name, how):
            await asyncio.sleep(pause)
            pause = min(1.5 * pause, _LONGEST_POLL_S)

    async def _is_ready(self, name: str) -> bool:
        with contextlib.suppress(SandboxError, DockerError):
            return await self._is_so(name, None)
        return False

    async def _is_so(self, name: str, how: StartedAs | None) -> bool:
        inspected = await self._shown(name)
        state: dict[str, Any] = inspected["State"]
        ended, waits = state["Status"] in ("exited", "dead"), state["Status"] in ("created", "restarting")
        if how == "started" or waits:
            return how == "started"
        if ended:
            return await self._has_ended(name, how, state)
        if how == "completed":
            return False
        health = (state.get("Health") or {}).get("Status")
        if health is None and how == "healthy":
            raise ConfigError(
                f"a service waits until {name} is healthy, but neither it nor its image has a healthcheck"
            )
        if health == "unhealthy":
            raise await self._failure(name, f"is not healthy: {_last_check(state)}")
        if name not in self._healthy and health is not None:
            await self._look_at_health(name, health, inspected["Config"])
        return health is None or name in self._healthy

    async def _look_at_health(self, name: str, health: str, config: Mapping[str, Any]) -> None:
        """Record whether a service is healthy. If the image declares ports, the service must also listen at a port: a
        database passes its check while its first scripts run, although no client can connect yet.
        """
        if health != "healthy" and not await self._passes(name, config["Healthcheck"]):
            self._passing.pop(name, None)
            return
        since = self._passing.setdefault(name, time.monotonic())
        declares = any(port.endswith("/tcp") for port in config.get("ExposedPorts") or ())
        if not declares or time.monotonic() - since > _MUTE_S or await self._listens(name):
            self._healthy.add(name)

    async def _has_ended(self, name: str, how: StartedAs | None, state: Mapping[str, Any]) -> bool:
        """Whether a service ended without an error. Raises SandboxError if the service failed."""
        if state["ExitCode"] and self._group.services[name].restart == "no":
            memory = " (its memory was used up)" if state["OOMKilled"] else ""
            raise await self._failure(name, f"ended with exit code {state['ExitCode']}{memory}")
        if how == "healthy" and name not in self._healthy:
            raise await self._failure(name, "ended before it was healthy")
        return not state["ExitCode"]

    async def _passes(self, name: str, check: Mapping[str, Any]) -> bool:
        """Run a health check directly, as the engine runs the first check only after an interval. Returns whether it
        passes."""
        kind, *words = check.get("Test") or ("NONE",)
        argv = {"CMD": words, "CMD-SHELL": ["/bin/sh", "-c", *words]}.get(kind)
        if not argv or check.get("Interval", 0) <= _SECOND:
            return False
        return (await self._ask(name, argv))[0] == 0

    async def _listens(self, name: str) -> bool:
        """Whether other services can connect to a service. True if unknown: the image may lack the program `cat`."""
        _, output = await self._ask(name, _LISTENERS)
        lines = [line.split() for line in output.splitlines()]
        addresses = [line[1].partition(":")[0] for line in lines if len(line) > 3 and line[3] == _LISTENS]
        return "local_address" not in output or not all(address.endswith((_OWN_V4, _OWN_V6)) for address in addresses)

    async def _ask(self, name: str, argv: Sequence[str]) -> tuple[int | None, str]:
        """Run a command in a service. Returns exit code and output; the exit code is 1 if the command cannot run, or
        takes too long."""
        output = b""
        with contextlib.suppress(DockerError, TimeoutError):
            async with asyncio.timeout(_CHECK_S):
                command = await self._docker.containers.container(self._siblings.name(name)).exec(list(argv))
                async with command.start() as stream:
                    while (message := await stream.read_out()) is not None:
                        output += message.data
                return await exit_code(command), output.decode(errors="replace")
        return 1, ""

    async def _shown(self, name: str) -> dict[str, Any]:
        try:
            inspected: dict[str, Any] = await self._docker._query_json(f"containers/{self._siblings.name(name)}/json")
        except DockerError as exc:
            raise SandboxError(f"sandbox {self._id}: its service {name} is gone: {_line(exc)}") from exc
        return inspected

    async def _failure(self, name: str, problem: str) -> SandboxError:
        """An error about a service, with the end of the service's log."""
        output = ""
        with contextlib.suppress(DockerError, TimeoutError):
            async with asyncio.timeout(10.0):
                container = self._docker.containers.container(self._siblings.name(name))
                output = "".join(await container.log(stdout=True, stderr=True, tail=_SHOWN))
        lines = " | ".join(line.strip() for line in output.splitlines() if line.strip())[-1500:]
        return SandboxError(
            f"sandbox {self._id}: its service {name} {problem}; "
            + (f"the end of its log: {lines}" if lines else "it wrote nothing")
        )


def _last_check(state: Mapping[str, Any]) -> str:
    checks = (state.get("Health") or {}).get("Log") or [{}]
    output = " ".join(str(checks[-1].get("Output", "")).split())[-300:]
    return f"its last check ended with {checks[-1].get('ExitCode')}, {output or 'and wrote nothing'}"


def _line(exc: DockerError) -> str:
    return " ".join(exc.message.split())[-400:]
