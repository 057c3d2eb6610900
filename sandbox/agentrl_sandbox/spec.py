"""SandboxSpec: the contents and limits of a sandbox. The defaults are safe; less safe settings are logged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from agentrl_sandbox.egress.hosts import AllowedHosts
from agentrl_sandbox.services import ServiceGroup


class SandboxSpec(BaseModel):
    """The contents and limits of a sandbox. Sandboxes with equal specs are interchangeable, so a pool may
    return any of them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    image: str = ""
    """An image of the back end; empty: the back end's base image (bash, coreutils, python3, git, patch)."""
    user: str = "agent"
    """The default user of commands. `agent` is unprivileged; `root` has no capabilities."""
    workdir: str = "/work"
    """The writable folder where commands start. `/tmp` is writable too."""
    memory_mb: int = Field(default=1024, gt=0)
    """Memory of all processes together, in MiB. A process above the limit is killed."""
    cpus: float = Field(default=1.0, gt=0)
    """Cores for the sandbox, at most the machine's cores."""
    pids: int = Field(default=256, gt=0)
    """The most processes and threads at the same time."""
    disk_mb: int = Field(default=512, gt=0)
    """The size of all writable folders together in MiB. Folders in memory count towards `memory_mb` too. For a writable
    root: the bytes written to the root.
    """
    file_mb: int = Field(default=256, gt=0)
    """The size of the largest file in MiB."""
    network: Literal["none", "open"] | tuple[str, ...] = "none"
    """none: a loopback interface only. open: the host's whole network. A list of hosts, such as `pypi.org` and
    `*.example.org:8443`: only the listed hosts, over HTTP and HTTPS, through agentrl's proxy. An entry without a port
    allows the ports 80 and 443."""
    read_only: bool = True
    """Whether everything except the writable folders is read-only."""
    env: Mapping[str, str] = Field(default_factory=dict)
    """Variables for the environment of every command. Variables of the host are never passed in."""
    sockets: Mapping[str, str] = Field(default_factory=dict)
    """Unix sockets of the host to mount in: path in the sandbox -> path on the host."""
    services: ServiceGroup | None = None
    """Containers beside the sandbox on a private network, such as a database. Only the back end docker supports
    services.
    """
    lifetime_s: float = Field(default=3600.0, gt=0)
    """Seconds after which the reaper may remove the sandbox, even if its owner is alive."""

    @property
    def images(self) -> tuple[str, ...]:
        """All images of the sandbox and its services, the sandbox's image first."""
        return (self.image, *(self.services.images if self.services is not None else ()))

    @property
    def total_memory_mb(self) -> int:
        """The memory of the sandbox and all its services in MiB."""
        return self.memory_mb + (self.services.memory_mb if self.services is not None else 0)

    @property
    def total_cpus(self) -> float:
        """The CPU cores of the sandbox and all its services."""
        return self.cpus + (self.services.cpus if self.services is not None else 0)

    @field_validator("network", mode="before")
    @classmethod
    def _names_hosts(cls, network: object) -> object:
        if network in ("none", "open"):
            return network
        if not isinstance(network, list | tuple) or not network or not all(isinstance(host, str) for host in network):
            raise ValueError(f"write none, open, or a list of hosts such as [pypi.org], not {network!r}")
        AllowedHosts(network)
        return tuple(network)

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts listed in `network`. Empty for none and open."""
        return () if isinstance(self.network, str) else self.network

    def loosened(self) -> list[str]:
        """The settings that are less safe than the defaults, as text for the log."""
        weaknesses = []
        if self.network != "none":
            weaknesses.append(f"it reaches {', '.join(self.hosts) or 'the network'}")
        if not self.read_only:
            weaknesses.append("its root file system is writable")
        if self.user == "root":
            weaknesses.append("commands run as root")
        weaknesses += [f"it reaches {host} of this machine" for host in self.sockets.values()]
        return weaknesses

    def __hash__(self) -> int:
        return hash(self.model_dump_json())
