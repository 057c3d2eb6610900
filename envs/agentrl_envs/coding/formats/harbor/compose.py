"""A task's docker-compose.yaml: the service main is the agent's sandbox, and other services run in parallel.

The author of a task may want to leave the sandbox. So each key is applied, ignored because the key has no effect
here, or refused with an error that names the key. Unknown keys are refused. docs/services.md has the table.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from agentrl import ConfigError
from agentrl._util.config_errors import problems
from agentrl._util.yaml_files import read_yaml
from agentrl_envs.coding.formats.harbor import compose_values as values
from agentrl_envs.coding.formats.harbor.compose_rules import (
    BUILD,
    BUILD_IGNORED,
    ESCAPES,
    TOP,
    CannotRunError,
    check_service,
)
from agentrl_envs.coding.formats.harbor.compose_values import Variables, Volume
from agentrl_sandbox.services import CAPABILITIES, MAIN, HealthCheck, Mount, Placed, Service, ServiceGroup, StartedAs

M = TypeVar("M", bound=BaseModel)

NAMES = ("docker-compose.yaml", "docker-compose.yml")
MAIN_IMAGE = "main-image"
"""The value of MAIN_IMAGE_NAME: the image of the service main, which has no name before the build."""

_LOGS = {"AGENT_LOGS": "/logs/agent", "ARTIFACTS": "/logs/artifacts", "VERIFIER_LOGS": "/logs/verifier"}
_HOST_LOGS = {f"/host-of-this-task/{name}": path for name, path in _LOGS.items()}
"""Source of a mount, in the place of Harbor's log folders on the host -> path in the sandbox. Services share these
folders of the sandbox instead."""
_CONDITIONS: Mapping[str, StartedAs] = {
    "service_started": "started",
    "service_healthy": "healthy",
    "service_completed_successfully": "completed",
}
_IDLE = (("sleep",), ("tail", "-f", "/dev/null"), ("bash",), ("/bin/bash",), ("sh",), ("/bin/sh",))
_IDLE_SCRIPT = re.compile(r"\s*(exec\s+)?(sleep\s+\S+|tail -f /dev/null)\s*;?\s*")


@dataclass(frozen=True, slots=True)
class Build:
    """An image that is built from a folder of the task."""

    context: Path
    dockerfile: str
    """The text of the Dockerfile."""
    args: Mapping[str, str] = field(default_factory=dict)
    target: str = ""


@dataclass(slots=True)
class MainService:
    """The compose file's settings for the agent's container (service main). An empty or None field is not set."""

    image: str | Build | None = None
    command: str = ""
    """A shell line to run in parallel with the agent; empty if the container only waits."""
    env: dict[str, str] = field(default_factory=dict)
    user: str = ""
    workdir: str = ""
    memory_mb: int | None = None
    cpus: float | None = None
    pids: int | None = None
    health: HealthCheck | None = None
    folders: tuple[str, ...] = ()
    """Empty folders that only this container mounts."""


@dataclass(slots=True)
class ComposeFile:
    main: MainService = field(default_factory=MainService)
    builds: dict[str, Build] = field(default_factory=dict)
    """Service -> the build of the image. The service's `image` is empty before the build."""
    group: ServiceGroup | None = None
    """The services other than main. None if the file needs only the agent's sandbox."""


def read_compose(folder: Path, variables: Mapping[str, str], ready_s: float) -> ComposeFile:
    """Read the compose file of an environment folder, if any. The parent is the task's folder.

    Raises CannotRunError for refused settings, and ConfigError for wrong settings.
    """
    name = next((name for name in NAMES if (folder / name).is_file()), None)
    if name is None:
        return ComposeFile()
    return _Reading(folder, folder / name, variables, ready_s).read()


def plain_name(image: str) -> str:
    """The name of an image. Raises CannotRunError for a path, which would be a file of this machine."""
    if image.startswith(("/", ".", "~")):
        raise CannotRunError(f"the image {image} is refused: a task names images of a registry, and no files")
    return image


class _Reading:
    """Turns the settings of a compose file into a ComposeFile."""

    def __init__(self, folder: Path, file: Path, variables: Mapping[str, str], ready_s: float) -> None:
        self.folder, self.file, self.ready_s = folder.resolve(), file, ready_s
        self.root = self.folder.parent
        env_file = (self.folder / ".env").resolve()
        env = values.env_file(env_file) if env_file.is_file() and env_file.is_relative_to(self.root) else {}
        hosts = {f"HOST_{path.rpartition('/')[2]}_PATH": path for path in _HOST_LOGS}
        inside = {f"ENV_{name}_PATH": path for name, path in _LOGS.items()}
        fixed = {
            "CONTEXT_DIR": str(self.folder),
            "TEST_DIR": "/tests",
            "MAIN_IMAGE_NAME": MAIN_IMAGE,
            "PREBUILT_IMAGE_NAME": MAIN_IMAGE,
            "MAIN_CONTAINER_NAME": MAIN,
            "COMPOSE_PROJECT_NAME": "task",
        }
        self.variables = Variables({**env, **variables, **fixed, **hosts, **inside})
        self.volumes: dict[str, str] = {}
        self.networks: dict[str, bool] = {}
        self.logs: set[str] = set()
        """The log folders that services mount, so that main must share these folders."""

    def read(self) -> ComposeFile:
        """The ComposeFile. Raises CannotRunError for a refused setting, and ConfigError for a wrong setting."""
        services = self._sections()
        file = ComposeFile()
        peers: dict[str, Service] = {}
        for name, settings in services.items():
            with self._telling(f"{name}: "):
                if not isinstance(settings, dict):
                    raise ConfigError("a service is a mapping of its settings")
                if settings.get("profiles"):
                    if name == MAIN:
                        raise ConfigError("it has profiles, so compose would not start it; remove them")
                    continue  # compose starts it only when its profile is asked for
                check_service(settings)
                if name != MAIN:
                    peers[name] = self._peer(name, settings, file.builds)
        with self._telling("main: "):
            file.main = self._main(services[MAIN], alone=not peers)
            placed = self._placed(MAIN, services[MAIN], alone=not peers)
        self._follow_links(services, peers)
        if peers or placed.files or placed.mounts:
            after = {name: started for name, started in placed.after.items() if name in peers}
            with self._telling(""):
                file.group = self._group(peers, placed.model_copy(update={"after": after}))
        return file

    def _sections(self) -> dict[str, Any]:
        """The settings of each service, with variables filled in. Also stores the volumes and networks of the file."""
        raw = read_yaml(self.file, such_as="services: {main: {build: .}}", version="1.2")
        with self._telling(""):
            try:
                raw = self.variables.fill(raw)
            except RecursionError as exc:
                raise ConfigError("it refers to itself by an alias (*name)") from exc
            services = raw.get("services")
            if not isinstance(services, dict) or not isinstance(services.get(MAIN, 0), dict | None):
                raise ConfigError("it names no service main; write `services: {main: {build: .}}`")
            if odd := [key for key in raw if key not in TOP and not str(key).startswith("x-")]:
                raise CannotRunError(f"{odd[0]} is refused: write its content into the services")
            self._read_volumes(raw.get("volumes") or {})
            self._read_networks(raw.get("networks") or {})
        return {str(name): settings or {} for name, settings in services.items()}

    def _peer(self, name: str, settings: Mapping[str, Any], builds: dict[str, Build]) -> Service:
        """A service other than main. If its image must be built, the build is added to `builds`."""
        image = self._image(settings)
        if not isinstance(image, Build):
            return self._service(name, settings, image)
        builds[name] = image
        return self._service(name, settings, "")

    @contextmanager
    def _telling(self, place: str) -> Iterator[None]:
        """Within `with`, add the names of the file and the service to errors."""
        try:
            yield
        except ConfigError as exc:
            raise type(exc)(f"{self.folder.name}/{self.file.name}: {place}{exc}") from exc

    def _group(self, services: Mapping[str, Service], main: Placed) -> ServiceGroup:
        used = {mount.volume for part in (main, *services.values()) for mount in part.mounts if mount.volume}
        fields = {
            "services": services,
            "main": main,
            "volumes": {name: source for name, source in self.volumes.items() if name in used},
            "closed": tuple(name for name, closed in self.networks.items() if closed),
            "ready_s": self.ready_s,
        }
        return _validated(ServiceGroup, fields)

    # The file's own volumes and networks

    def _read_volumes(self, volumes: Mapping[str, Any]) -> None:
        for name, settings in volumes.items():
            settings = settings or {}
            options = settings.get("driver_opts") or {}
            if settings.get("external"):
                raise CannotRunError(f"the volume {name} is refused: external data is not part of the task")
            if settings.get("driver", "local") != "local" or (options and options.get("type") != "tmpfs"):
                raise CannotRunError(
                    f"the volume {name} is refused: driver and driver_opts can reach the machine's files"
                )
            self.volumes[str(name)] = ""

    def _read_networks(self, networks: Mapping[str, Any]) -> None:
        for name, settings in networks.items():
            settings = settings or {}
            if settings.get("driver", "bridge") not in ("bridge", "overlay") or settings.get("driver_opts"):
                raise CannotRunError(
                    f"the network {name} is refused: driver and driver_opts can reach the machine's network"
                )
            if settings.get("ipam"):
                raise CannotRunError(f"the network {name} is refused: with ipam, two sandboxes could not run at a time")
            self.networks[str(name)] = bool(settings.get("internal"))

    # A service

    def _service(self, name: str, settings: Mapping[str, Any], image: str) -> Service:
        added = {
            values.text(capability).upper().removeprefix("CAP_") for capability in values.items(settings.get("cap_add"))
        }
        if added - {*CAPABILITIES}:
            raise CannotRunError(f"cap_add {min(added - {*CAPABILITIES})} is refused: {ESCAPES}")
        mode = values.word(settings, "network_mode")
        shared = self._shared(settings)
        fields: dict[str, Any] = {
            **self._placed(name, settings).model_dump(),
            **{key: value for key, value in shared.items() if value is not None},
            "image": image,
            "entrypoint": values.words(settings.get("entrypoint")),
            "command": values.words(settings.get("command")),
            "hostname": values.word(settings, "hostname"),
            "within": mode.removeprefix("service:") if mode.startswith("service:") else "",
            "restart": (values.word(settings, "restart") or "no").replace("false", "no"),
            "ulimits": _ulimits(settings.get("ulimits") or {}),
            "init": bool(settings.get("init")),
            "tty": bool(settings.get("tty") or settings.get("stdin_open")),
        }
        if settings.get("shm_size"):
            fields["shm_mb"] = values.megabytes(settings["shm_size"])
        return _validated(Service, fields)

    def _main(self, settings: Mapping[str, Any], *, alone: bool) -> MainService:
        if added := values.items(settings.get("cap_add")):
            raise CannotRunError(f"cap_add {added[0]} is refused: the agent has no capabilities, not even as root")
        image = self._image(settings) if settings.get("build") or settings.get("image") else ""
        command = [*(values.words(settings.get("entrypoint")) or ()), *(values.words(settings.get("command")) or ())]
        mounts = [values.volume(volume) for volume in values.items(settings.get("volumes"))]
        return MainService(
            **self._shared(settings),
            image=None if image in ("", MAIN_IMAGE) else image,
            command="" if _is_idle(command) else shlex.join(command),
            folders=tuple(volume.target for volume in mounts if volume.kind == "volume") if alone else (),
        )

    def _shared(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The settings that main and the other services have in common. None means that a setting is not set."""
        limits = (((settings.get("deploy") or {}).get("resources") or {}).get("limits")) or {}
        memory = limits.get("memory") or settings.get("mem_limit")
        cpus, pids = limits.get("cpus") or settings.get("cpus"), limits.get("pids") or settings.get("pids_limit")
        return {
            "env": self._env(settings),
            "user": values.word(settings, "user"),
            "workdir": values.word(settings, "working_dir"),
            "health": _health(settings.get("healthcheck")),
            "memory_mb": values.megabytes(memory) if memory else None,
            "cpus": values.number(cpus) if cpus else None,
            "pids": int(values.number(pids)) if pids and values.text(pids) != "-1" else None,
        }

    def _placed(self, name: str, settings: Mapping[str, Any], *, alone: bool = False) -> Placed:
        mounts, files = self._mounts(name, settings, alone=alone)
        hosts = [str(host).replace("=", ":", 1) for host in _pairs(settings.get("extra_hosts"))]
        if any("host-gateway" in host for host in hosts):
            raise CannotRunError("extra_hosts host-gateway is refused: it is the address of the machine")
        networks = self._joined(settings)
        if alias := settings.get("container_name"):
            networks = {network: (*names, values.text(alias)) for network, names in networks.items()}
        after = _after(settings.get("depends_on"))
        return Placed(networks=networks, mounts=tuple(mounts), files=files, hosts=tuple(hosts), after=after)

    def _mounts(self, name: str, settings: Mapping[str, Any], *, alone: bool) -> tuple[list[Mount], dict[str, str]]:
        """The mounts of a service, and the files to copy: path in the container -> path on this machine."""
        mounts, files = list[Mount](), dict[str, str]()
        for volume in map(values.volume, values.items(settings.get("volumes"))):
            mount = self._mount(name, volume)
            if isinstance(mount, Mount):
                if not (alone and volume.kind == "volume"):  # a folder that nobody shares is like any other
                    mounts.append(mount)
            elif mount is not None:
                files[volume.target] = mount
        if not alone:
            mounts += [
                _validated(Mount, values.in_memory(line), f"tmpfs {line}: ")
                for line in values.items(settings.get("tmpfs"))
            ]
        if name == MAIN:
            taken = {mount.path for mount in mounts}
            mounts += [Mount(path=path, volume=path) for path in sorted(self.logs - taken)]
        return mounts, files

    def _joined(self, settings: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
        """Network -> the service's aliases in the network."""
        mode = values.word(settings, "network_mode")
        if mode == "none" or mode.startswith("service:"):
            return {}
        if mode not in ("", "bridge", "default"):
            raise CannotRunError(f"network_mode {mode} is refused: {ESCAPES}")
        networks = settings.get("networks") or ["default"]
        joined = {}
        for name in networks:
            options = (networks[name] or {}) if isinstance(networks, dict) else {}
            if options.get("ipv4_address") or options.get("ipv6_address"):
                raise CannotRunError("a fixed address is refused: with it, two sandboxes could not run at a time")
            if name != "default" and name not in self.networks:
                raise ConfigError(f"the network {name} is not declared under networks")
            joined[str(name)] = tuple(map(values.text, options.get("aliases") or ()))
        return joined

    def _mount(self, service: str, volume: Volume) -> Mount | str | None:
        """The mount for a volume; or the path of a file to copy; or None if the volume needs neither."""
        if volume.source in _HOST_LOGS:
            if service == MAIN:
                return None
            if volume.source.endswith("VERIFIER_LOGS"):
                raise CannotRunError("a mount of the verifier's logs is refused: the service could write the reward")
            self.logs.add(_HOST_LOGS[volume.source])
            self.volumes[_HOST_LOGS[volume.source]] = ""
            return Mount(path=volume.target, volume=_HOST_LOGS[volume.source], read_only=volume.read_only)
        if volume.kind == "tmpfs":
            return Mount(path=volume.target, size_mb=volume.size_mb)
        if volume.kind == "volume":
            name = volume.source or f"{service}:{volume.target}"
            if volume.source and volume.source not in self.volumes:
                raise ConfigError(f"the volume {volume.source} is not declared under volumes")
            self.volumes.setdefault(name, "")
            return Mount(path=volume.target, volume=name, read_only=volume.read_only)
        if volume.kind != "bind":
            raise CannotRunError(f"a mount of type {volume.kind} is refused: it is not known here")
        return self._bound(volume)

    def _bound(self, volume: Volume) -> Mount | str:
        if posixpath.basename(volume.source.rstrip("/")) == "docker.sock":
            raise CannotRunError(
                f"the mount of {volume.source} is refused: whoever reaches the engine owns the machine"
            )
        path = self._inside(volume.source, f"the mount of {volume.source}")
        if path.is_file():
            return str(path)
        if path.exists() and not path.is_dir():
            raise CannotRunError(f"the mount of {volume.source} is refused: it is neither a file nor a folder")
        self.volumes[str(path)] = str(path) if path.is_dir() else ""
        return Mount(path=volume.target, volume=str(path), read_only=volume.read_only)

    def _inside(self, place: str, purpose: str) -> Path:
        """A path of the task's folder. Raises CannotRunError if a link leads out of the folder."""
        path = (self.folder / place).resolve()
        if place.startswith("~") or not path.is_relative_to(self.root):
            raise CannotRunError(f"{purpose} is refused: only files of the task's own folder can be used")
        return path

    def _image(self, settings: Mapping[str, Any]) -> str | Build:
        build = settings.get("build")
        if build:
            return self._build(build if isinstance(build, dict) else {"context": build})
        if not settings.get("image"):
            raise ConfigError("it has neither an image nor a build")
        return plain_name(values.text(settings["image"]))

    def _build(self, build: Mapping[str, Any]) -> Build:
        for key, value in build.items():
            if key not in BUILD | BUILD_IGNORED and value not in (None, False, [], {}, ""):
                raise CannotRunError(f"build.{key} is refused: images are built without it")
        place = values.text(build.get("context") or ".")
        if "://" in place or place.startswith("git@"):
            raise CannotRunError(f"a build in {place} is refused: only folders of the task can be built")
        context = self._inside(place, f"a build in {place}")
        inline = build.get("dockerfile_inline")
        dockerfile = values.text(inline) if inline else self._dockerfile(build, context, place)
        args = values.mapping(build.get("args") or {}, self.variables.values)
        return Build(context, dockerfile, args, values.word(build, "target"))

    def _dockerfile(self, build: Mapping[str, Any], context: Path, place: str) -> str:
        name = values.text(build.get("dockerfile") or "Dockerfile")
        file = self._inside(str(context / name), f"the Dockerfile {name}")
        try:
            return file.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise CannotRunError(f"a build in {place} has no {name}") from None
        except (OSError, UnicodeDecodeError) as exc:
            raise ConfigError(f"{file}: {exc}") from exc

    def _env(self, settings: Mapping[str, Any]) -> dict[str, str]:
        variables: dict[str, str] = {}
        for file in values.items(settings.get("env_file")):
            entry = file if isinstance(file, dict) else {"path": file}
            path = self._inside(values.text(entry.get("path")), f"env_file {entry.get('path')}")
            if path.is_file() or entry.get("required", True):
                variables |= values.env_file(path)
        return variables | values.mapping(settings.get("environment") or {}, self.variables.values)

    def _follow_links(self, services: Mapping[str, Any], peers: dict[str, Service]) -> None:
        """Add the aliases in `links` to the linked services, for the whole network."""
        for settings in services.values():
            for link in map(values.text, values.items((settings or {}).get("links"))):
                name, _, alias = link.partition(":")
                if alias and name in peers:
                    joined = {network: (*names, alias) for network, names in peers[name].networks.items()}
                    peers[name] = peers[name].model_copy(update={"networks": joined})


def _pairs(value: Any) -> list[str]:
    return [f"{name}:{item}" for name, item in value.items()] if isinstance(value, dict) else values.items(value)


def _after(depends_on: Any) -> dict[str, StartedAs]:
    if not isinstance(depends_on, dict):
        return dict.fromkeys(map(values.text, values.items(depends_on)), "started")
    conditions: dict[str, StartedAs] = {}
    for name, settings in depends_on.items():
        condition = values.text((settings or {}).get("condition", "service_started"))
        if condition not in _CONDITIONS:
            raise ConfigError(f"depends_on {name}: {condition!r} is none of {', '.join(_CONDITIONS)}")
        conditions[str(name)] = _CONDITIONS[condition]
    return conditions


def _health(healthcheck: Any) -> HealthCheck | None:
    if not healthcheck:
        return None
    test = healthcheck.get("test")
    if healthcheck.get("disable") or test in ("NONE", ["NONE"]):
        return HealthCheck(test=("NONE",))
    fields: dict[str, Any] = {
        f"{key}_s": values.seconds(healthcheck[key])
        for key in ("interval", "timeout", "start_period")
        if healthcheck.get(key) is not None
    }
    if healthcheck.get("retries"):
        fields["retries"] = int(values.number(healthcheck["retries"]))
    fields["test"] = ("CMD-SHELL", test) if isinstance(test, str) else tuple(map(values.text, test or ()))
    return _validated(HealthCheck, fields, "healthcheck: ")


def _validated(model: type[M], fields: Mapping[str, Any], place: str = "") -> M:
    """Raises ConfigError with the mistakes in the fields."""
    try:
        return model.model_validate(fields)
    except ValidationError as exc:
        raise ConfigError(f"{place}{problems(exc, model)}") from exc


def _ulimits(ulimits: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    parsed = {}
    for name, limit in ulimits.items():
        soft, hard = (limit.get("soft"), limit.get("hard")) if isinstance(limit, dict) else (limit, limit)
        try:
            parsed[str(name)] = (int(values.text(soft)), int(values.text(hard)))
        except ValueError:
            raise ConfigError(f"ulimits {name}: {limit!r} is not a number, nor soft and hard ones") from None
    return {name: limits for name, limits in parsed.items() if name not in ("fsize", "core")}


def _is_idle(command: list[str]) -> bool:
    """Whether a container with this command only waits."""
    if len(command) == 3 and command[1] in ("-c", "-lc", "-ec"):
        return _IDLE_SCRIPT.fullmatch(command[2]) is not None
    return not command or any(
        tuple(command[: len(idle)]) == idle and (idle == ("sleep",) or len(command) == len(idle)) for idle in _IDLE
    )
