"""ServiceGroup: the containers beside a sandbox, such as its database, and what they share with it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator

StartedAs: TypeAlias = Literal["started", "healthy", "completed"]
"""What a service waits for: that another runs, that its health check passes, or that it has ended with exit code 0."""

MAIN = "main"
"""The name of the sandbox itself among its services."""

CAPABILITIES = (
    *("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE", "SETGID", "SETUID", "SYS_CHROOT"),
)
"""What services may do as root: give their folders to a user of their own, become that user, and listen anywhere. It
is less than an engine grants by default: no raw packets, no devices."""

_MOST = 32
_DAY_S = 86_400.0
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class _GroupPart(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Mount(_GroupPart):
    """A folder of a container that its image does not provide."""

    path: str
    """Where it is in the container."""
    volume: str = ""
    """One of `ServiceGroup.volumes`; empty: an empty folder in memory, of this container alone."""
    read_only: bool = False
    """The container may not write there."""
    owner: str = Field(default="0:0", pattern=r"^\d{1,9}:\d{1,9}$")
    """Whose an empty folder is, as user:group in numbers. The sandbox's own folders are its user's."""
    mode: str = Field(default="1777", pattern=r"^[0-7]{3,4}$")
    """An empty folder's permissions."""
    size_mb: int = Field(default=0, ge=0)
    """MiB that fit into an empty folder, at most the service's memory; 0: a quarter of that."""


class HealthCheck(_GroupPart):
    """How the engine finds out whether a service works."""

    test: tuple[str, ...]
    """As the engine takes it: ("CMD", program, argument ...), ("CMD-SHELL", line), or ("NONE",) for no check."""
    interval_s: float = Field(default=30.0, gt=0, le=_DAY_S)
    """Seconds from the end of one check to the next one."""
    timeout_s: float = Field(default=30.0, gt=0, le=_DAY_S)
    """After this long a check has failed."""
    start_period_s: float = Field(default=0.0, ge=0, le=_DAY_S)
    """Failures during the first seconds do not count."""
    retries: int = Field(default=3, gt=0, le=100_000)
    """So many failures in a row make it unhealthy."""


class Placed(_GroupPart):
    """What a container of the group needs from the others: names, folders, files."""

    networks: Mapping[str, tuple[str, ...]] = Field(default_factory=dict)
    """Network -> other names that the container has there, beside the service's own. Empty: no network."""
    mounts: tuple[Mount, ...] = ()
    """Folders that its image does not provide."""
    files: Mapping[str, str] = Field(default_factory=dict)
    """Path in the container -> file of this machine, which is copied there before the container starts."""
    hosts: tuple[str, ...] = ()
    """Lines of its /etc/hosts as "name:address"."""
    after: Mapping[str, StartedAs] = Field(default_factory=dict)
    """Service -> what must be so before this one starts; for the sandbox itself, before its first command."""


class Service(Placed):
    """A container beside the sandbox. What is not set is as in its image."""

    image: str
    """The image that it runs."""
    entrypoint: tuple[str, ...] | None = None
    """The program, before `command`."""
    command: tuple[str, ...] | None = None
    """The arguments of `entrypoint`, or the program where there is none."""
    env: Mapping[str, str] = Field(default_factory=dict)
    """Environment variables."""
    user: str = ""
    """Who runs it; empty: the user of its image."""
    workdir: str = ""
    """Its working folder."""
    hostname: str = ""
    """Its host name; empty: an id."""
    within: str = ""
    """Another service whose network it shares, with its addresses and ports, instead of `networks`."""
    health: HealthCheck | None = None
    """How the engine finds out whether it works; None: as its image says."""
    restart: str = Field(default="no", pattern=r"^(no|always|unless-stopped|on-failure(:\d{1,3})?)$")
    """When the engine starts it again: no, always, unless-stopped, on-failure or on-failure:COUNT."""
    memory_mb: int = Field(default=1024, gt=0)
    """MiB of memory."""
    cpus: float = Field(default=1.0, gt=0)
    """Cores."""
    pids: int = Field(default=256, gt=0)
    """Processes and threads."""
    disk_mb: int = Field(default=2048, gt=0)
    """What it may write outside of its mounts. Beyond it, the whole sandbox is ended."""
    shm_mb: int = Field(default=64, gt=0)
    """MiB of /dev/shm."""
    ulimits: Mapping[str, tuple[int, int]] = Field(default_factory=dict)
    """Name -> soft and hard limit; -1 is none."""
    init: bool = False
    """Its first process is one that buries the dead."""
    tty: bool = False
    """It has a terminal, and a standard input that stays open."""


class ServiceGroup(_GroupPart):
    """The services of one sandbox. They start before its first command can run, and are removed with it.

    Each service has its own limits, so those of a sandbox with services are not limits of the group together.
    """

    services: Mapping[str, Service]
    """By the name under which the others reach it. `main` is the sandbox itself."""
    main: Placed = Placed(networks={"default": ()})
    """What the sandbox itself needs from its services."""
    volumes: Mapping[str, str] = Field(default_factory=dict)
    """Name -> folder of this machine whose content it has at first; empty: what the first image has at its place. Each
    sandbox has its own, in memory: what is in it counts towards the `memory_mb` of the service that wrote it. Its size
    is half the memory of the largest container that mounts it."""
    closed: tuple[str, ...] = ()
    """Networks that have no way out, even with `network: open`."""
    ready_s: float = Field(default=600.0, gt=0, le=_DAY_S)
    """Seconds that all services together may take until they run, and those with a health check are healthy."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if wrong := [name for name in (*self.services, *self._networks()) if not _NAME.fullmatch(name)]:
            raise ValueError(f"{wrong[0]!r} cannot be a name: use letters, digits, and ._-")
        if len(self.services) > _MOST:
            raise ValueError(f"a sandbox has at most {_MOST} services")
        if MAIN in self.services:
            raise ValueError("main is the sandbox itself, and not one of its services")
        for name, service in self.services.items():
            self._check_waits(name, service)
        if loop := self._loop():
            raise ValueError(f"services wait for each other: {' -> '.join(loop)}")
        for name, part in {MAIN: self.main, **self.services}.items():
            if unknown := [mount.volume for mount in part.mounts if mount.volume and mount.volume not in self.volumes]:
                raise ValueError(f"{name} mounts {unknown[0]}, which is none of the volumes")
        return self

    def _check_waits(self, name: str, service: Service) -> None:
        if service.within == MAIN:
            raise ValueError(f"{name} cannot share the network of main; let both join one network")
        for other in (*service.after, *filter(None, [service.within])):
            if other not in self.services and other != MAIN:
                raise ValueError(f"{name} waits for {other}, which is no service")
        if service.after.get(MAIN, "started") != "started":
            raise ValueError(f"{name} waits for main, which starts its work last")

    def _networks(self) -> list[str]:
        return [network for part in (self.main, *self.services.values()) for network in part.networks]

    def _loop(self) -> list[str]:
        """Services that wait for each other, the first one again at the end; empty if there are none."""
        done = set[str]()

        def follow(name: str, path: list[str]) -> list[str]:
            if name in path:
                return [*path[path.index(name) :], name]
            if name == MAIN or name in done:
                return []
            done.add(name)
            after = (*self.services[name].after, *filter(None, [self.services[name].within]))
            return next((loop for following in after if (loop := follow(following, [*path, name]))), [])

        return next((loop for name in self.services if (loop := follow(name, []))), [])

    @property
    def images(self) -> tuple[str, ...]:
        """Their images, each once."""
        return tuple(dict.fromkeys(service.image for service in self.services.values()))

    @property
    def names(self) -> tuple[str, ...]:
        """All names by which services are reached."""
        aliases = (alias for service in self.services.values() for some in service.networks.values() for alias in some)
        return tuple(dict.fromkeys((*self.services, *aliases)))

    @property
    def memory_mb(self) -> int:
        """MiB of all services together."""
        return sum(service.memory_mb for service in self.services.values())

    @property
    def cpus(self) -> float:
        """Cores of all services together."""
        return sum(service.cpus for service in self.services.values())
