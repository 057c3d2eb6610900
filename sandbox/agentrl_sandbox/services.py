"""ServiceGroup: the containers beside a sandbox, such as a database, with shared networks and volumes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator

StartedAs: TypeAlias = Literal["started", "healthy", "completed"]
"""A condition on a service. started: it runs. healthy: its health check passes. completed: it has ended with exit
code 0."""

MAIN = "main"
"""The name of the sandbox itself among its services."""

CAPABILITIES = (
    *("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE", "SETGID", "SETUID", "SYS_CHROOT"),
)
"""The Linux capabilities of services that run as root: to change owners, to become another user, and to listen on any
port. An engine grants more by default, such as raw packets and devices."""

_MOST = 32
_DAY_S = 86_400.0
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class _GroupPart(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Mount(_GroupPart):
    """A folder of a container that does not come from the image."""

    path: str
    """The path in the container."""
    volume: str = ""
    """A name in `ServiceGroup.volumes`. If this is "", the mount is an empty folder in memory for this container
    alone."""
    read_only: bool = False
    """Whether the container cannot write to the folder."""
    owner: str = Field(default="0:0", pattern=r"^\d{1,9}:\d{1,9}$")
    """The owner of an empty folder, as user:group in numbers. The sandbox's user owns the sandbox's folders."""
    mode: str = Field(default="1777", pattern=r"^[0-7]{3,4}$")
    """An empty folder's permissions."""
    size_mb: int = Field(default=0, ge=0)
    """The size in MiB of an empty folder, at most the service's memory. 0: a quarter of the service's memory."""


class HealthCheck(_GroupPart):
    """How the engine finds out whether a service works."""

    test: tuple[str, ...]
    """The command of the check: ("CMD", program, argument ...), ("CMD-SHELL", line), or ("NONE",) for no check."""
    interval_s: float = Field(default=30.0, gt=0, le=_DAY_S)
    """Seconds from the end of a check to the next check."""
    timeout_s: float = Field(default=30.0, gt=0, le=_DAY_S)
    """Seconds after which a check has failed."""
    start_period_s: float = Field(default=0.0, ge=0, le=_DAY_S)
    """Seconds after the start during which failures do not count."""
    retries: int = Field(default=3, gt=0, le=100_000)
    """Consecutive failures that make a service unhealthy."""


class Placed(_GroupPart):
    """The networks, folders and files of a container in a ServiceGroup."""

    networks: Mapping[str, tuple[str, ...]] = Field(default_factory=dict)
    """Network -> further names of the container in this network, in addition to the service's name. An empty mapping:
    no network."""
    mounts: tuple[Mount, ...] = ()
    """Folders that do not come from the image."""
    files: Mapping[str, str] = Field(default_factory=dict)
    """Path in the container -> file of this machine, copied before the container starts."""
    hosts: tuple[str, ...] = ()
    """Lines of /etc/hosts as "name:address"."""
    after: Mapping[str, StartedAs] = Field(default_factory=dict)
    """Service -> the condition that the service must meet before this container starts. For the sandbox itself: before
    the first command runs."""


class Service(Placed):
    """A container beside the sandbox. Unset values come from the image."""

    image: str
    """The image to run."""
    entrypoint: tuple[str, ...] | None = None
    """The program, before `command`."""
    command: tuple[str, ...] | None = None
    """The arguments of `entrypoint`, or the program if there is no entrypoint."""
    env: Mapping[str, str] = Field(default_factory=dict)
    """Environment variables."""
    user: str = ""
    """The user of the process. Empty: the image's user."""
    workdir: str = ""
    """The working folder."""
    hostname: str = ""
    """The host name. Empty: a random id."""
    within: str = ""
    """The name of a service whose network (addresses and ports) this service shares. If set, `networks` is not used."""
    health: HealthCheck | None = None
    """The engine's health check of the service. None: the image's check."""
    restart: str = Field(default="no", pattern=r"^(no|always|unless-stopped|on-failure(:\d{1,3})?)$")
    """When the engine starts the service again: no, always, unless-stopped, on-failure or on-failure:COUNT."""
    memory_mb: int = Field(default=1024, gt=0)
    """The memory limit in MiB."""
    cpus: float = Field(default=1.0, gt=0)
    """The most CPU cores."""
    pids: int = Field(default=256, gt=0)
    """The most processes and threads."""
    disk_mb: int = Field(default=2048, gt=0)
    """MiB that the service may write outside of the mounts. Above the limit, the whole sandbox is ended."""
    shm_mb: int = Field(default=64, gt=0)
    """The size of /dev/shm in MiB."""
    ulimits: Mapping[str, tuple[int, int]] = Field(default_factory=dict)
    """Name of a resource limit -> soft and hard limit; -1 means no limit."""
    init: bool = False
    """Whether the first process is an init process that reaps zombies."""
    tty: bool = False
    """Whether the service has a terminal, and a standard input that stays open."""


class ServiceGroup(_GroupPart):
    """The services of a sandbox. Services start before the first command can run, and are removed with the sandbox.

    Each service has its own limits, so the limits of a sandbox with services are not limits of the whole group.
    """

    services: Mapping[str, Service]
    """Network name -> service. The name `main` belongs to the sandbox itself."""
    main: Placed = Placed(networks={"default": ()})
    """The networks, folders and files of the sandbox itself."""
    volumes: Mapping[str, str] = Field(default_factory=dict)
    """Name of a volume -> folder of this machine with the initial content. With "", the initial content is that of the
    first image at the mounted path. Each sandbox has its own volumes, in memory: content counts towards the `memory_mb`
    of the writing service. The size is half the memory of the largest container with the mount.
    """
    closed: tuple[str, ...] = ()
    """Networks from which containers reach no host outside, even with `network: open`."""
    ready_s: float = Field(default=600.0, gt=0, le=_DAY_S)
    """The most seconds until all services run and all their health checks pass."""

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
        """The names of services that wait for each other, with the first name again at the end. Empty without a
        loop."""
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
        """The images of the services, each once."""
        return tuple(dict.fromkeys(service.image for service in self.services.values()))

    @property
    def names(self) -> tuple[str, ...]:
        """All network names of the services."""
        aliases = (alias for service in self.services.values() for some in service.networks.values() for alias in some)
        return tuple(dict.fromkeys((*self.services, *aliases)))

    @property
    def memory_mb(self) -> int:
        """The memory of all services together in MiB."""
        return sum(service.memory_mb for service in self.services.values())

    @property
    def cpus(self) -> float:
        """The CPU cores of all services together."""
        return sum(service.cpus for service in self.services.values())
