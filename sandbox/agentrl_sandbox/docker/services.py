"""The services of a sandbox: further containers, which share private networks and volumes with the sandbox.

The isolation does not depend on the firewall of the engine's machine. A closed network is a bridge on which the machine
itself has no address, with a name server that forwards no queries.
"""

from __future__ import annotations

import asyncio
import io
import math
import secrets
import tarfile
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any, TypeAlias

from aiodocker import DockerError

from agentrl.errors import ConfigError
from agentrl_sandbox.docker.container import DISK, FIRST, KEEPER, Image, file_size, labels
from agentrl_sandbox.docker.engine import DockerClient
from agentrl_sandbox.docker.images import Images
from agentrl_sandbox.services import CAPABILITIES, MAIN, HealthCheck, Mount, Placed, Service, ServiceGroup
from agentrl_sandbox.spec import SandboxSpec

Whole: TypeAlias = Callable[[Coroutine[Any, Any, Any]], Awaitable[Any]]
"""A function that completes a request even if the caller is cancelled."""

_LOG = {"Type": "json-file", "Config": {"max-size": "1m", "max-file": "1"}}
_RANGE = int(ip_address("198.18.0.0"))
"""The first address of a range reserved for benchmarks, unused by real networks, with room for 2,048 networks of
sandboxes. The engine's default ranges suffice for some thirty networks."""
_TRIES = 40
"""The most subnets to try, as another sandbox may use a subnet already."""
_MB = 1 << 20
_HELD = "/volumes"
_LARGEST_ARCHIVE = 256 << 20
"""The most bytes of an archive of files to copy. The archive is in memory during the transfer."""


class SiblingContainers:
    """The services of a sandbox. `prepare` runs before the sandbox's container is created, `ServiceStart` after the
    container has started."""

    def __init__(
        self, sandbox_id: str, spec: SandboxSpec, group: ServiceGroup, engine: DockerClient, images: Images
    ) -> None:
        self.sandbox_id, self.group, self.docker = sandbox_id, group, engine.docker
        self._spec, self._engine, self._images = spec, engine, images
        self._labels = labels(spec, sandbox_id)
        self.addresses: dict[tuple[str, str], str] = {}
        """(network, service) -> the service's address, for closed networks."""
        self._volumes: dict[str, str] = {}
        """Name of a volume in the ServiceGroup -> its name on the engine."""

    def name(self, service: str) -> str:
        """The name of a service's container."""
        return self.sandbox_id if service == MAIN else f"{self.sandbox_id}-{service}"

    @property
    def names(self) -> list[str]:
        """The names of all services' containers."""
        return [self.name(service) for service in self.group.services]

    async def prepare(self, image: Image, whole: Whole) -> None:
        """Create the networks, the volumes and the containers. `image` is the image of the sandbox itself."""
        images = {
            name: await self._images.ready(service_spec.image) for name, service_spec in self.group.services.items()
        }
        mounts = {name: self._all_mounts(name, images[name]) for name in images}
        for name in self._networks():
            await whole(self.make_network(name))
        for volume in self._sizes(mounts):
            await whole(self.make_volume(*volume))
        if self._volumes:
            await self._hold(image, whole)
        for name, service in self._in_order():
            body = self._body(name, service, images[name], mounts[name])
            await whole(self._engine.create(body, self.name(name)))
            await self.place(name, service, whole)

    def main(self) -> dict[str, Any]:
        """The fields of HostConfig and NetworkingConfig for the container of the sandbox itself."""
        main = self.group.main
        joined = {"NetworkMode": self._first_network(main), **self._names(MAIN, main)}
        return {
            **(joined if self.group.services else {"ExtraHosts": list(main.hosts)}),
            "Mounts": [self._mount(mount) for mount in main.mounts if mount.volume],
        }

    async def place(self, name: str, placed: Placed, whole: Whole) -> None:
        """Connect a new container to the remaining networks, and copy the files."""
        for network in list(placed.networks)[1:] if self.group.services else ():
            body = {"Container": self.name(name), "EndpointConfig": self.endpoint(name, placed, network)}
            await whole(self.docker._query_json(f"networks/{self._network(network)}/connect", "POST", data=body))
        if placed.files:
            archive = await asyncio.to_thread(packed_files, placed.files)
            await whole(self._unpack(self.name(name), "/", archive))

    def endpoint(self, name: str, placed: Placed, network: str) -> dict[str, Any]:
        """The engine's settings of a container on a network: its names, and its address unless the engine chooses
        it."""
        address = self.addresses.get((network, name))
        return {
            "Aliases": self._aliases(name, placed, network),
            **({"IPAMConfig": {"IPv4Address": address}} if address else {}),
        }

    def _aliases(self, name: str, placed: Placed, network: str) -> list[str]:
        return list(dict.fromkeys((name, *placed.networks[network])))

    def endpoints(self, name: str, placed: Placed) -> dict[str, Any]:
        """The NetworkingConfig to create a container. It has only the first network, as an engine takes no more at
        creation."""
        first = next(iter(placed.networks), None)
        if first is None or not self.group.services:
            return {}
        return {"EndpointsConfig": {self._network(first): self.endpoint(name, placed, first)}}

    # Networks and volumes

    def _networks(self) -> list[str]:
        """The names of all networks. Empty without services: then the sandbox's spec alone defines the network."""
        parts = self._parts().values() if self.group.services else ()
        return list(dict.fromkeys(network for part in parts for network in part.networks))

    def _network(self, name: str) -> str:
        return f"{self.sandbox_id}-{name}"

    def _is_closed(self, network: str) -> bool:
        return self._spec.network != "open" or network in self.group.closed

    async def make_network(self, name: str) -> None:
        closed = self._is_closed(name)
        body: dict[str, Any] = {
            "Name": self._network(name),
            "CheckDuplicate": True,
            "Driver": "bridge",
            "Internal": closed,
            "Labels": self._labels,
            # without an address, the machine is unreachable, and the machine's routes stay
            "Options": {"com.docker.network.bridge.inhibit_ipv4": "true"} if closed else {},
        }
        for attempt in range(_TRIES if closed else 1):
            subnet = ip_network((_RANGE + (secrets.randbelow(2 << 10) << 6), 26))
            chosen = {"IPAM": {"Driver": "default", "Config": [{"Subnet": str(subnet)}]}} if closed else {}
            try:
                await self.docker._query_json("networks/create", "POST", data=body | chosen)
            except DockerError as exc:
                if "overlap" not in exc.message.lower() or attempt == _TRIES - 1:
                    raise
            else:
                if closed:
                    members = [member for member, placed in self._parts().items() if name in placed.networks]
                    self.addresses |= {(name, member): str(subnet[2 + number]) for number, member in enumerate(members)}
                return

    def _parts(self) -> dict[str, Placed]:
        return {MAIN: self.group.main, **self.group.services}

    def _all_mounts(self, name: str, image: Image) -> tuple[Mount, ...]:
        """A service's mounts, and a mount for each folder that its image declares as a volume."""
        mounts = self.group.services[name].mounts
        taken = {mount.path.rstrip("/") for mount in mounts}
        declared = [path for path in image.volumes if path.rstrip("/") not in taken]
        return (*mounts, *(Mount(path=path, volume=f"{name}:{path}") for path in declared))

    def _sizes(self, mounts: Mapping[str, Sequence[Mount]]) -> list[tuple[str, int]]:
        """Pairs of a volume and its size in MiB."""
        memory = {name: self.group.services[name].memory_mb for name in mounts}
        users: dict[str, list[int]] = {}
        for name, some in ({**mounts, MAIN: self.group.main.mounts}).items():
            for entry in some:
                if entry.volume:
                    users.setdefault(entry.volume, []).append(memory.get(name, self._spec.memory_mb))
        return [(entry, max(sizes) // 2) for entry, sizes in users.items()]

    async def make_volume(self, volume: str, size_mb: int) -> None:
        name = f"{self.sandbox_id}-v{len(self._volumes)}"
        body = {
            "Name": name,
            "Driver": "local",
            "DriverOpts": {"type": "tmpfs", "device": "tmpfs", "o": f"size={max(size_mb, 1)}m,nosuid,nodev"},
            "Labels": self._labels,
        }
        self._volumes[volume] = name
        await self.docker._query_json("volumes/create", "POST", data=body)

    async def _hold(self, image: Image, whole: Whole) -> None:
        """Run a container that mounts all volumes. A volume is in memory, and is lost when the last container with it
        ends.

        The container has no process of the sandbox, and no network.
        """
        places = {volume: f"{_HELD}/{number}" for number, volume in enumerate(self._volumes)}
        body = {
            "Image": image.name,
            "User": f"{KEEPER}:{KEEPER}",
            "Entrypoint": ["/bin/sh", "-c", FIRST],
            "Cmd": [],
            "Labels": self._labels,
            "Healthcheck": {"Test": ["NONE"]},
            "HostConfig": {
                "NetworkMode": "none",
                "Mounts": [
                    {
                        "Type": "volume",
                        "Source": self._volumes[volume_name],
                        "Target": place,
                        "VolumeOptions": {"NoCopy": True},
                    }
                    for volume_name, place in places.items()
                ],
                "Memory": 32 * _MB,
                "MemorySwap": 32 * _MB,
                "PidsLimit": 16,
                "CapDrop": ["ALL"],
                "SecurityOpt": ["no-new-privileges"],
                "LogConfig": {"Type": "none"},
                "IpcMode": "private",
            },
        }
        name = f"{self.sandbox_id}-volumes"
        await whole(self._engine.create(body, name))
        container = self.docker.containers.container(name)
        await whole(container.start())
        for volume, place in places.items():
            if folder := self.group.volumes.get(volume):
                await whole(self._unpack(name, place, await asyncio.to_thread(packed_folder, folder)))

    async def _unpack(self, container: str, folder: str, archive: bytes) -> None:
        """Unpack a tar file in a container. aiodocker's method for this has no types."""
        sent = self.docker._query(f"containers/{container}/archive", "PUT", params={"path": folder}, data=archive)
        async with sent as response:
            await response.read()

    def _mount(self, mount: Mount) -> dict[str, Any]:
        return {
            "Type": "volume",
            "Source": self._volumes[mount.volume],
            "Target": mount.path,
            "ReadOnly": mount.read_only,
            # the folder's own content is there already
            "VolumeOptions": {"NoCopy": bool(self.group.volumes.get(mount.volume))},
        }

    # Containers

    def _in_order(self) -> list[tuple[str, Service]]:
        """The services in the order of creation: a service whose network others share comes before these."""
        return sorted(self.group.services.items(), key=lambda item: bool(item[1].within))

    def _first_network(self, placed: Placed) -> str:
        return next((self._network(network) for network in placed.networks), "none")

    def _names(self, name: str, placed: Placed) -> dict[str, Any]:
        """The settings for name resolution of a container. In closed networks, the hosts file has all reachable names.

        The name server is then the container itself, where no server responds, as an engine might ask servers outside.
        """
        if not all(map(self._is_closed, placed.networks)):
            return {"ExtraHosts": list(placed.hosts)}
        addresses: dict[str, str] = {}
        for network in placed.networks:
            for other, part in self._parts().items():
                if other != name and network in part.networks:
                    for alias in self._aliases(other, part, network):
                        addresses.setdefault(alias, self.addresses[network, other])
        return {
            "ExtraHosts": [*placed.hosts, *(f"{alias}:{address}" for alias, address in addresses.items())],
            "Dns": ["127.0.0.1"],
            "DnsOptions": ["timeout:1", "attempts:1"],
        }

    def _body(self, name: str, service: Service, image: Image, mounts: Sequence[Mount]) -> dict[str, Any]:
        optional: dict[str, Any] = {
            "User": service.user or None,
            "Entrypoint": list(service.entrypoint) if service.entrypoint is not None else None,
            "Cmd": list(service.command) if service.command is not None else None,
            "WorkingDir": service.workdir or None,
            "Hostname": None if service.within else (service.hostname or name)[:63],
            "Healthcheck": _health(service.health) if service.health is not None else None,
        }
        return {
            **{key: value for key, value in optional.items() if value is not None},
            "Image": image.name,
            "Env": [f"{key}={value}" for key, value in service.env.items()],
            "Labels": self._labels | {DISK: str(service.disk_mb)},
            "Tty": service.tty,
            "OpenStdin": service.tty,
            "HostConfig": self._host_config(name, service, mounts),
            "NetworkingConfig": {} if service.within else self.endpoints(name, service),
        }

    def _host_config(self, name: str, service: Service, mounts: Sequence[Mount]) -> dict[str, Any]:
        host = self._engine.host
        policy, _, count = service.restart.partition(":")
        size = file_size(service.disk_mb, host)
        limits = {"fsize": (size, size), "core": (0, 0), **service.ulimits}
        shared = f"container:{self.name(service.within)}" if service.within else ""
        return {
            "NetworkMode": shared or self._first_network(service),
            **({} if shared else self._names(name, service)),
            "Mounts": [self._mount(mount) for mount in mounts if mount.volume],
            "Tmpfs": {mount.path: _in_memory(mount, service.memory_mb) for mount in mounts if not mount.volume},
            "Memory": service.memory_mb * _MB,
            "MemorySwap": service.memory_mb * _MB,
            "NanoCpus": int(min(service.cpus, host.cores) * 1e9),
            "PidsLimit": service.pids,
            "Ulimits": [{"Name": key, "Soft": soft, "Hard": hard} for key, (soft, hard) in limits.items()],
            "CapDrop": ["ALL"],
            "CapAdd": list(CAPABILITIES),
            "SecurityOpt": ["no-new-privileges"],
            "Init": service.init,
            "LogConfig": _LOG,
            "IpcMode": "private",
            "ShmSize": min(service.shm_mb, service.memory_mb) * _MB,
            "RestartPolicy": {"Name": policy, "MaximumRetryCount": int(count or 0)},
            "StorageOpt": {"size": f"{service.disk_mb}m"} if host.quotas else {},
        }


def _in_memory(folder: Mount, memory_mb: int) -> str:
    size = min(folder.size_mb, memory_mb) or max(memory_mb // 4, 1)
    user, _, group = folder.owner.partition(":")
    return f"rw,exec,nosuid,nodev,size={size}m,mode={folder.mode},uid={user},gid={group}"


def _health(check: HealthCheck) -> dict[str, Any]:
    return {
        "Test": list(check.test),
        "Interval": _nanoseconds(check.interval_s),
        "Timeout": _nanoseconds(check.timeout_s),
        "StartPeriod": _nanoseconds(check.start_period_s),
        "Retries": check.retries,
    }


def _nanoseconds(seconds: float) -> int:
    """A duration in nanoseconds, at least a millisecond unless it is 0, as an engine refuses shorter durations."""
    return math.ceil(seconds * 1000) * 1_000_000


def packed_files(files: Mapping[str, str]) -> bytes:
    """A tar file with `files` (path in the container -> file on this machine), owned by root. Raises ConfigError."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for inside, here in files.items():
            _add(archive, Path(here), inside.lstrip("/"))
    return packed.getvalue()


def packed_folder(folder: str) -> bytes:
    """A tar file of a folder's content, owned by root: files, folders, and links as links. Raises ConfigError."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path in sorted(Path(folder).rglob("*")):
            if path.is_symlink() or path.is_file() or path.is_dir():
                _add(archive, path, str(path.relative_to(folder)))
    return packed.getvalue()


def _add(archive: tarfile.TarFile, path: Path, name: str) -> None:
    try:
        entry = archive.gettarinfo(path, name)
        if entry.islnk():  # a second name of a file already in the archive
            entry.type, entry.linkname, entry.size = tarfile.REGTYPE, "", path.stat().st_size
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        if archive.offset + entry.size > _LARGEST_ARCHIVE:
            raise ConfigError(
                f"{path} and what is mounted with it are larger than {_LARGEST_ARCHIVE >> 20} MiB; put it into an image"
            )
        if entry.isreg():
            with path.open("rb") as file:
                archive.addfile(entry, file)
        else:
            archive.addfile(entry)
    except OSError as exc:
        raise ConfigError(f"{path} cannot be copied into a service: {exc.strerror}") from exc
