"""The abilities of back ends on this machine, and the existing sandboxes: for `agentrl sandbox`."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from agentrl.errors import ConfigError, SandboxError
from agentrl.sandbox import Sandbox
from agentrl_sandbox.backend import FoundSandbox, HasLeftovers, Leftover, open_backend
from agentrl_sandbox.reaper import paused
from agentrl_sandbox.spec import SandboxSpec

NAMES = ("docker", "bubblewrap", "local")

_SPEC = SandboxSpec(memory_mb=64, disk_mb=32, file_mb=8, pids=32)
_PROBES = {
    "an unprivileged user": '[ "$(id -u)" != 0 ]',
    "no network": '[ "$(grep -c : /proc/net/dev)" = 1 ]',
    "a read-only root": "[ ! -w /usr ]",
    "no capabilities": '[ "$(grep -c -E "Cap(Prm|Eff|Bnd).*[1-9a-f]" /proc/self/status)" = 0 ]',
    "no new privileges": 'grep -q "NoNewPrivs:.*1" /proc/self/status',
    "seccomp": 'grep -q "Seccomp:.*2" /proc/self/status',
    "memory": "! { head -c 200000000 /dev/zero | tail -c 150000000 > kept; }",
    "file size": "! head -c 16000000 /dev/zero > file",
    "disk": "i=0; while [ $i -lt 8 ] && head -c 7000000 /dev/zero > disk$i; do i=$((i+1)); done; [ $i -lt 8 ]",
    "processes": "exec sh -c 'i=0; while [ $i -lt 64 ]; do sleep 2 & i=$((i+1)); done'",
}
"""Limit -> command that succeeds if the sandbox enforces the limit. The last command instead fails if the limit is
enforced."""


@dataclass(frozen=True, slots=True)
class Check:
    """The abilities of a back end on this machine."""

    name: str
    problem: str = ""
    """Why the back end cannot create sandboxes; empty if it can."""
    seconds: float = 0.0
    """Seconds until the first command in a new sandbox had finished."""
    enforced: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    """The limits that the back end's sandboxes do not enforce."""


async def check(name: str) -> Check:
    """Create a sandbox, and try to break each limit."""
    try:
        async with open_backend(name) as backend:
            await backend.prepare("")
            start = time.monotonic()
            async with backend.sandbox(_SPEC) as box:
                await box.exec("true", check=True)
                seconds = time.monotonic() - start
                holds_by_probe = {probe: await _holds(box, probe) for probe in _PROBES}
    except (SandboxError, ConfigError) as exc:
        return Check(name, " ".join(str(exc).split()))
    enforced = tuple(probe for probe, holds in holds_by_probe.items() if holds)
    return Check(backend.name, "", seconds, enforced, tuple(probe for probe in holds_by_probe if probe not in enforced))


async def _holds(box: Sandbox, probe: str) -> bool:
    result = await box.exec(_PROBES[probe], timeout=20)
    await box.exec("rm -f kept file disk*")
    return (result.exit_code != 0) if probe == "processes" else (result.exit_code == 0)


async def found(name: str = "") -> Sequence[FoundSandbox]:
    """List the sandboxes of a back end, or of all working back ends."""
    with paused():
        return [sandbox for backend in await _working(name) for sandbox in await _listed(backend)]


async def collect(name: str = "") -> int:
    """Remove the sandboxes without an owner, of a back end or of all working back ends. Returns their number."""
    count = 0
    with paused():
        for backend_name in await _working(name):
            async with open_backend(backend_name) as backend:
                gone = [box.sandbox_id for box in await backend.list() if box.gone]
                await backend.remove(gone)
                count += len(gone)
    return count


async def left(name: str = "") -> Sequence[Leftover]:
    """List leftovers other than sandboxes: images and cgroups."""
    with paused():
        return [leftover async for tidied in _tidied(name) for leftover in await tidied.leftovers()]


async def tidy(name: str = "") -> Sequence[Leftover]:
    """Remove the leftovers that `left` lists. Returns the removed leftovers."""
    with paused():
        return [leftover async for tidied in _tidied(name) for leftover in await tidied.clear(await tidied.leftovers())]


async def _tidied(name: str) -> AsyncIterator[HasLeftovers]:
    for backend_name in await _working(name):
        async with open_backend(backend_name) as backend:
            if isinstance(backend, HasLeftovers):
                yield backend


async def _listed(name: str) -> Sequence[FoundSandbox]:
    async with open_backend(name) as backend:
        return await backend.list()


async def _working(name: str) -> list[str]:
    """The back end `name`, without a test. Without a name, all working back ends."""
    if name:
        return [name]
    names = []
    for candidate in (*NAMES, "e2b"):
        try:
            async with open_backend(candidate):
                names.append(candidate)
        except (SandboxError, ConfigError):
            continue
    return names
