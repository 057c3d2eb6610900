"""The Backend protocol, which creates, lists and removes sandboxes, and the table of back ends by name."""

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
    """A sandbox on this machine or engine, created by any process."""

    sandbox_id: str
    image: str
    owner: str
    """The process that owns the sandbox, as text; see `agentrl_sandbox.owners`."""
    run: str
    """The name of the run that uses the sandbox."""
    deadline: float
    """The Unix time after which the sandbox may be removed."""
    gone: bool
    """Whether the owner is gone, or the deadline has passed."""
    host: str = ""
    """The host's name, if the back end has several hosts."""


class Backend(Protocol):
    """Creates sandboxes. Entering a back end (`async with`) connects to the engine, and removes sandboxes that ended
    processes left behind.

    Entering raises SandboxError, with the remedy, if the back end cannot work here (no engine, no bubblewrap).
    """

    name: str

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc: object) -> None: ...

    def sandbox(self, spec: SandboxSpec) -> Sandbox:
        """A new sandbox, which is not open yet. Raises ConfigError for a spec beyond the limits of this back end."""
        ...

    async def prepare(self, image: str) -> None:
        """Get an image ready, so that opening a sandbox need not wait for the image. Raises SandboxError if the image
        does not exist."""
        ...

    async def list(self) -> Sequence[FoundSandbox]:
        """Every agentrl sandbox, including sandboxes of other processes."""
        ...

    async def remove(self, sandbox_ids: Sequence[str]) -> None:
        """Remove sandboxes with all their processes. Sandboxes already gone are not an error."""
        ...


@dataclass(frozen=True, slots=True)
class Leftover:
    """An unused object of agentrl on this machine or engine, such as an image. Sandboxes are not leftovers."""

    kind: Literal["image", "cgroup"]
    name: str
    note: str
    size: int = 0
    """The size in bytes; 0 if unknown."""


@runtime_checkable
class HasLeftovers(Protocol):
    """A back end with leftovers other than sandboxes."""

    async def leftovers(self) -> Sequence[Leftover]: ...

    async def clear(self, leftovers: Sequence[Leftover]) -> Sequence[Leftover]:
        """Remove leftovers, except leftovers that are in use again. Returns the removed leftovers."""
        ...


@runtime_checkable
class HasMachine(Protocol):
    """A back end that, once entered, knows the machine where its sandboxes run. Other back ends
    run their sandboxes on this machine."""

    @property
    def machine(self) -> Machine: ...


@runtime_checkable
class KeepsMachines(Protocol):
    """A back end that can save a running machine, if the service supports snapshots of machines."""

    @property
    def keeps_machines(self) -> bool:
        """Whether the service supports snapshots of machines. Read the value after entering the back end."""
        ...

    async def keep(self, sandbox: Sandbox) -> MachineSnapshot:
        """Save the machine of an open sandbox. The sandbox continues. No command may run during the call.

        A sandbox with the snapshot's `image` in the spec continues from there. Raises SandboxError.
        """
        ...


def machine_of(backend: Backend) -> Machine:
    """The machine of a back end's sandboxes, if known. The back end must be entered."""
    return backend.machine if isinstance(backend, HasMachine) else machine.here()


BACKENDS = {
    "docker": "agentrl_sandbox.docker.backend:DockerBackend",
    "bubblewrap": "agentrl_sandbox.bubblewrap.backend:BubblewrapBackend",
    "local": "agentrl_sandbox.local.backend:LocalBackend",
    "e2b": "agentrl_sandbox.e2b.backend:E2BBackend",
    "fake": "agentrl_sandbox.fake.backend:FakeBackend",
    "auto": "agentrl_sandbox.backend:AutoBackend",
}
"""Name -> path of the back end's class. auto: docker if an engine responds, else bubblewrap."""

log = logging.getLogger("agentrl")

_warned: set[str] = set()
"""Messages about choices of `auto` that were logged, so that the pools of several event loops log each once."""


def open_backend(name: str) -> Backend:
    """A new back end, which is not entered yet. `name` is a name in BACKENDS or a class as `package.module:Class`.

    After "hosted:" comes the class of a service's sandbox: `hosted:slime.agent.sandbox:E2BSandbox`. After "docker:"
    come hosts: `docker:ssh://user@one,ssh://user@two`.

    Raises ConfigError for an unknown name, or if a required Python package is missing.
    """
    kind, _, service = name.partition(":")
    if kind == "docker" and service:
        return cast(Backend, load_object("agentrl_sandbox.docker.hosts:DockerHosts")(service))
    if kind == "hosted":
        return cast(Backend, load_object("agentrl_sandbox.hosted.backend:HostedBackend").at(service))
    if name not in BACKENDS and not (":" in name or "." in name):
        use = "; write one of {}, docker:HOST,HOST, hosted:package.module:Class, or package.module:Class of a back end"
        raise ConfigError(f"no sandbox back end {name!r}{did_you_mean(name, [*BACKENDS, 'hosted'], use)}")
    return cast(Backend, load_object(BACKENDS.get(name, name))())


class AutoBackend:
    """Uses docker if an engine responds, else bubblewrap, with a warning about the reason. `name` is the name of the
    chosen back end."""

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
    """Log the choice of `auto`, and the reasons against better back ends."""
    if not reasons:
        log.info("sandboxes run in %s", name)
    elif (why := "; ".join(reasons)) not in _warned:
        _warned.add(why)
        log.warning("sandboxes run in %s, whose limits and images differ (%s); name the back end to be sure", name, why)
