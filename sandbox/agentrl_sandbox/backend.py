"""The Backend protocol: what makes, lists and removes sandboxes; and the table of back ends by name."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, Self, cast, runtime_checkable

from agentrl._util.loading import load_object
from agentrl.errors import ConfigError, SandboxError, did_you_mean
from agentrl.sandbox import MachineSnapshot, Sandbox
from agentrl_sandbox import machine
from agentrl_sandbox.machine import Machine
from agentrl_sandbox.spec import SandboxSpec


@dataclass(frozen=True, slots=True)
class FoundSandbox:
    """A sandbox that a back end found on this machine or engine, whichever process made it."""

    sandbox_id: str
    image: str
    owner: str
    """As `agentrl_sandbox.owners` writes it: host, boot, process and start time."""
    run: str
    """The name of the run that made it."""
    deadline: float
    """Unix time after which it may be removed."""
    gone: bool
    """Whether its owner is gone, or its deadline has passed."""
    host: str = ""
    """Where it is, if the back end has several hosts."""


class Backend(Protocol):
    """A way to make sandboxes. Entering it connects to what it needs and removes what earlier owners left.

    Raises SandboxError, naming the remedy, if it cannot work on this machine (no engine, no bubblewrap).
    """

    name: str

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc: object) -> None: ...

    def sandbox(self, spec: SandboxSpec) -> Sandbox:
        """A sandbox that is not open yet. Raises ConfigError for a spec that this back end cannot enforce."""
        ...

    async def prepare(self, image: str) -> None:
        """Have an image ready, so that opening a sandbox need not wait for it. Raises SandboxError if there is none."""
        ...

    async def list(self) -> Sequence[FoundSandbox]:
        """All sandboxes of agentrl, those of other processes too."""
        ...

    async def remove(self, sandbox_ids: Sequence[str]) -> None:
        """Remove sandboxes with all their processes. Those already gone are not an error."""
        ...


@dataclass(frozen=True, slots=True)
class Leftover:
    """Something other than a sandbox that agentrl made on this machine or engine, and that no sandbox uses any more."""

    kind: Literal["image", "cgroup", "process"]
    name: str
    note: str
    size: int = 0
    """Bytes, if known."""


@runtime_checkable
class HasLeftovers(Protocol):
    """A back end with leftovers other than sandboxes."""

    async def leftovers(self) -> Sequence[Leftover]: ...

    async def clear(self, leftovers: Sequence[Leftover]) -> Sequence[Leftover]:
        """Remove them. Returns those that are gone now. What is in use again is kept."""
        ...


@runtime_checkable
class HasMachine(Protocol):
    """A back end that, once entered, knows the machine where its sandboxes run. For other back ends it is this one."""

    @property
    def machine(self) -> Machine: ...


@runtime_checkable
class KeepsMachines(Protocol):
    """A back end that can keep a running machine as it is, if its service offers that."""

    @property
    def keeps_machines(self) -> bool:
        """Whether the service offers it: known once the back end is entered."""
        ...

    async def keep(self, sandbox: Sandbox) -> MachineSnapshot:
        """Keep the machine of an open sandbox, which runs on. No command may be awaited meanwhile. Raises SandboxError.

        A sandbox whose spec has its `image` continues from it.
        """
        ...


def machine_of(backend: Backend) -> Machine:
    """The machine on which a back end's sandboxes run, if it is known. The back end must be entered."""
    return backend.machine if isinstance(backend, HasMachine) else machine.here()


BACKENDS = {
    "docker": "agentrl_sandbox.docker.backend:DockerBackend",
    "bubblewrap": "agentrl_sandbox.bubblewrap.backend:BubblewrapBackend",
    "local": "agentrl_sandbox.local.backend:LocalBackend",
    "e2b": "agentrl_sandbox.e2b.backend:E2BBackend",
    "fake": "agentrl_sandbox.fake.backend:FakeBackend",
    "auto": "agentrl_sandbox.backend:AutoBackend",
}
"""Back ends by name. auto: docker if an engine answers, else bubblewrap."""

log = logging.getLogger("agentrl")

_warned: set[str] = set()
"""The fallbacks with a warning already, so that the pools of several event loops log it once."""


def open_backend(name: str) -> Backend:
    """A back end by its name in BACKENDS, or the class at `package.module:Class`; it is not entered yet. After
    "hosted:" comes the class of a service's sandbox: `hosted:slime.agent.sandbox:E2BSandbox`. After "docker:" come
    hosts: `docker:ssh://user@one,ssh://user@two`.

    Raises ConfigError for an unknown name, or if a Python package is missing that the back end needs.
    """
    kind, _, service = name.partition(":")
    if kind == "docker" and service:
        return cast(Backend, load_object("agentrl_sandbox.docker.hosts:DockerHosts").at(service))
    if kind == "hosted":
        return cast(Backend, load_object("agentrl_sandbox.hosted.backend:HostedBackend").at(service))
    if name not in BACKENDS and not (":" in name or "." in name):
        use = "; write one of {}, docker:HOST,HOST, hosted:package.module:Class, or package.module:Class of a back end"
        raise ConfigError(f"no sandbox back end {name!r}{did_you_mean(name, [*BACKENDS, 'hosted'], use)}")
    return cast(Backend, load_object(BACKENDS.get(name, name))())


class AutoBackend:
    """Docker if an engine answers, else bubblewrap, with a warning about the reason. `name` is the chosen one's."""

    def __init__(self) -> None:
        self._chosen: Backend | None = None

    @property
    def name(self) -> str:
        return "auto" if self._chosen is None else self._chosen.name

    async def __aenter__(self) -> Self:
        """See `Backend`. Raises SandboxError, with both reasons, if neither works here."""
        reasons = []
        for name in ("docker", "bubblewrap"):
            try:
                self._chosen = await open_backend(name).__aenter__()
            except (SandboxError, ConfigError) as exc:
                reasons.append(f"{name}: {exc}")
            else:
                _tell_choice(name, reasons)
                return self
        raise SandboxError(f"no sandbox back end works here ({'; '.join(reasons)})")

    async def __aexit__(self, *exc: object) -> None:
        if self._chosen is not None:
            await self._chosen.__aexit__(*exc)

    def sandbox(self, spec: SandboxSpec) -> Sandbox:
        """See `Backend.sandbox`."""
        return self._entered.sandbox(spec)

    async def prepare(self, image: str) -> None:
        """See `Backend.prepare`."""
        await self._entered.prepare(image)

    async def list(self) -> Sequence[FoundSandbox]:
        """See `Backend.list`."""
        return await self._entered.list()

    async def remove(self, sandbox_ids: Sequence[str]) -> None:
        """See `Backend.remove`."""
        await self._entered.remove(sandbox_ids)

    @property
    def machine(self) -> Machine:
        """See `HasMachine.machine`."""
        return machine_of(self._entered)

    @property
    def _entered(self) -> Backend:
        if self._chosen is None:
            raise SandboxError("the back end is not entered; use it within `async with`")
        return self._chosen


def _tell_choice(name: str, reasons: Sequence[str]) -> None:
    """Log which back end `auto` took, and why not the better one."""
    if not reasons:
        log.info("sandboxes run in %s", name)
    elif (why := "; ".join(reasons)) not in _warned:
        _warned.add(why)
        log.warning("sandboxes run in %s, whose limits and images differ (%s); name the back end to be sure", name, why)
