"""The settings of a new container. The fields belong to API 1.41."""

from __future__ import annotations

import resource
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentrl_sandbox import owners
from agentrl_sandbox.docker.engine import Host
from agentrl_sandbox.egress.listening import variables
from agentrl_sandbox.spec import SandboxSpec

SANDBOX = "agentrl.sandbox"
OWNER = "agentrl.owner"
RUN = "agentrl.run"
DEADLINE = "agentrl.deadline"
IMAGE = "agentrl.image"
DISK = "agentrl.disk"
"""The label of sandboxes that can write to the engine's disk. Its value is `disk_mb`."""
FIRST = "exec sleep 2147483647"
"""The command of the first process: an endless sleep."""

_AGENT = 1000
"""The id of the user `agent`. A number, as images need not have the name."""
KEEPER = 64_321
"""The id of the user whose processes hold a container open."""
_MB = 1 << 20


@dataclass(frozen=True, slots=True)
class Image:
    """An image on the engine."""

    name: str
    """The image id. A name could later belong to a different image."""
    volumes: tuple[str, ...]
    """The folders that the image declares as volumes. They get a size limit, too."""
    user: str = "0:0"
    """The spec's user as numeric ids, user:group."""
    seed: bool = False
    """Whether the image's content of the work folder must be copied into each sandbox; see `images.sowing`."""


def identity(user: str) -> str:
    """A user in the form of the engine. `agent` and `root` become numbers, as the image's /etc/passwd may lack these
    users."""
    return {"agent": f"{_AGENT}:{_AGENT}", "root": "0:0"}.get(user, user)


def labels(spec: SandboxSpec, sandbox_id: str) -> dict[str, str]:
    """Labels by which other processes recognize the container, and know when its owner has ended."""
    deadline = time.time() + spec.lifetime_s
    return {
        SANDBOX: sandbox_id,
        OWNER: owners.current(),
        RUN: owners.run_name(),
        DEADLINE: f"{deadline:.3f}",
        IMAGE: spec.image or "base",
        **({} if spec.read_only else {DISK: str(spec.disk_mb)}),
    }


def configuration(spec: SandboxSpec, sandbox_id: str, image: Image, host: Host) -> dict[str, Any]:
    """The body of a request to create the container."""
    return {
        "Image": image.name,
        # A user without commands: so no command can end or trace the process. root has no capabilities here.
        "User": f"{KEEPER}:{KEEPER}",
        "Entrypoint": ["/bin/sh", "-c", FIRST],
        "Cmd": [],
        "WorkingDir": "/",
        "Hostname": "sandbox",
        "Env": [f"{name}={value}" for name, value in _environment(spec).items()],
        "Labels": labels(spec, sandbox_id),
        "Healthcheck": {"Test": ["NONE"]},
        "StopSignal": "SIGKILL",
        "HostConfig": _host_config(spec, image, host),
    }


def _environment(spec: SandboxSpec) -> Mapping[str, str]:
    defaults = {"LANG": "C.UTF-8", "USER": spec.user, "LOGNAME": spec.user}
    if spec.read_only or spec.user == "agent":  # else the engine reads the image's /etc/passwd
        defaults["HOME"] = "/tmp"  # writable, and never the work folder: programs obey files there, such as .gitconfig
    environment = {**defaults, **variables(spec.network), **spec.env}
    if spec.services is not None:
        for name in environment.keys() & {"NO_PROXY", "no_proxy"}:  # services are reached without a proxy
            environment[name] = ",".join((environment[name], *spec.services.names))
    return environment


def _host_config(spec: SandboxSpec, image: Image, host: Host) -> dict[str, Any]:
    return {
        "NetworkMode": "default" if spec.network == "open" else "none",
        "ReadonlyRootfs": spec.read_only,
        "Tmpfs": _folders(spec, image),
        "Mounts": _sockets(spec),
        "Memory": spec.memory_mb * _MB,
        "MemorySwap": spec.memory_mb * _MB,  # equal: no swap
        "NanoCpus": int(min(spec.cpus, host.cores) * 1e9),  # an engine refuses more than the machine's cores
        "PidsLimit": spec.pids,
        "Ulimits": [
            {"Name": "fsize", "Soft": (size := file_size(spec.file_mb, host)), "Hard": size},
            {"Name": "core", "Soft": 0, "Hard": 0},
        ],
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges"],
        "Init": True,  # buries the dead
        "LogConfig": {"Type": "none"},
        "IpcMode": "private",
        "ShmSize": _share(spec) * _MB,  # /dev/shm
        "StorageOpt": {"size": f"{spec.disk_mb}m"} if host.quotas and not spec.read_only else {},
    }


def _folders(spec: SandboxSpec, image: Image) -> dict[str, str]:
    """The mounts of the writable folders. They are in memory, as an engine does not limit their size on disk."""
    small = _share(spec)
    mounts = spec.services.main.mounts if spec.services is not None else ()
    taken = {mount.path for mount in mounts if mount.volume}
    folders = {path: _sized(small, "755", image.user) for path in image.volumes if path not in taken}
    folders |= {mount.path: _sized(small, "1777", image.user) for mount in mounts if not mount.volume}
    if spec.read_only:  # else the root is writable, including the image's own folder
        folders[spec.workdir] = _sized(max(spec.disk_mb - 2 * small, 1), "755", image.user)
    return folders | {"/tmp": _sized(small, "1777", image.user)}


def _share(spec: SandboxSpec) -> int:
    """The size in MiB of each writable folder except the work folder. All folders together must not fill the sandbox's
    memory."""
    return max(min(spec.disk_mb // 8, spec.memory_mb // 4), 1)


def _sized(size_mb: int, mode: str, owner: str) -> str:
    user, _, group = owner.partition(":")
    return f"rw,exec,nosuid,nodev,size={size_mb}m,mode={mode},uid={user},gid={group}"


def _sockets(spec: SandboxSpec) -> list[dict[str, Any]]:
    return [{"Type": "bind", "Source": host, "Target": path} for path, host in spec.sockets.items()]


def file_size(size_mb: int, host: Host) -> int:
    """The limit of a file's size in bytes. An engine refuses more than its hard limit, which is the hard limit of this
    process if the engine runs here."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    size = size_mb * _MB
    return size if hard == resource.RLIM_INFINITY or not host.here else min(size, hard)
