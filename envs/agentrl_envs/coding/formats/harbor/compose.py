"""A task's docker-compose.yaml: the service main is the agent's sandbox, and the others become services beside it.

The file is the work of a task's author, who may want to leave the sandbox. So each key is honoured, ignored because it
changes nothing here, or refused by its name; a key that is not known is refused. docs/services.md has the table.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

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

NAMES = ("docker-compose.yaml", "docker-compose.yml")
MAIN_IMAGE = "main-image"
"""What MAIN_IMAGE_NAME is: the image of the service main, which has no name before it is built."""

_LOGS = {"AGENT_LOGS": "/logs/agent", "ARTIFACTS": "/logs/artifacts", "VERIFIER_LOGS": "/logs/verifier"}
_HOST_LOGS = {f"/host-of-this-task/{name}": path for name, path in _LOGS.items()}
"""What Harbor mounts its own folders from -> where. Here each is a folder of the sandbox, shared with services that
mount it."""
_CONDITIONS: Mapping[str, StartedAs] = {
    "service_started": "started",
    "service_healthy": "healthy",
    "service_completed_successfully": "completed",
}
_IDLE = (("sleep",), ("tail", "-f", "/dev/null"), ("bash",), ("/bin/bash",), ("sh",), ("/bin/sh",))
_IDLE_SCRIPT = re.compile(r"\s*(exec\s+)?(sleep\s+\S+|tail -f /dev/null)\s*;?\s*")


@dataclass(frozen=True, slots=True)
class Build:
    """An image that is built from a folder of the task's."""

    context: Path
    dockerfile: str
    """The text of its Dockerfile."""
    args: Mapping[str, str] = field(default_factory=dict)
    target: str = ""


@dataclass(slots=True)
class MainService:
    """What the compose file has about the agent's own container. Empty: nothing."""

    image: str | Build | None = None
    command: str = ""
    """A shell line for what runs beside the agent; empty if the container only waits."""
    env: dict[str, str] = field(default_factory=dict)
    user: str = ""
    workdir: str = ""
    memory_mb: int | None = None
    cpus: float | None = None
    pids: int | None = None
    health: HealthCheck | None = None
    folders: tuple[str, ...] = ()
    """Folders that are mounted, empty, into this container alone."""


@dataclass(slots=True)
class ComposeFile:
    main: MainService = field(default_factory=MainService)
    builds: dict[str, Build] = field(default_factory=dict)
    """Service -> what its image is built from. Its `image` is empty until then."""
    group: ServiceGroup | None = None
    """None: a sandbox alone fulfils the file."""


def read_compose(folder: Path, variables: Mapping[str, str], ready_s: float) -> ComposeFile:
    """Read the compose file of an environment folder, if it has one. The task's folder is the one above.

    Raises CannotRunError for what is refused, and ConfigError for what is wrong.
    """
    name = next((name for name in NAMES if (folder / name).is_file()), None)
    if name is None:
        return ComposeFile()
    return _Reading(folder, folder / name, variables, ready_s).read()


def plain_name(image: str) -> str:
    """The name of an image. Raises CannotRunError for a path: it would be a file of this machine."""
    if image.startswith(("/", ".", "~")):
        raise CannotRunError(f"the image {image} is refused: a task names images of a registry, and no files")
    return image


class _Reading:
    """A compose file on its way to a ComposeFile."""

    def __init__(self, folder: Path, file: Path, variables: Mapping[str, str], ready_s: float) -> None:
        self.folder, self.file, self.ready_s = folder.resolve(), file, ready_s
        self.root = self.folder.parent
        env_file = (self.folder / ".env").resolve()
        own = values.env_file(env_file) if env_file.is_file() and env_file.is_relative_to(self.root) else {}
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
        self.variables = Variables({**own, **variables, **fixed, **hosts, **inside})
        self.at = ""
        """What is being read, for errors."""
        self.volumes: dict[str, str] = {}
        self.networks: dict[str, bool] = {}
        self.logs: set[str] = set()
        """The log folders that services mount, so that main must share them."""

    def read(self) -> ComposeFile:
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
        found = ComposeFile()
        made, waits = {}, {}
        for name, given in services.items():
            with self._telling(f"{name}: "):
                given = given or {}
                if not isinstance(given, dict):
                    raise ConfigError("a service is a mapping of its settings")
                if given.get("profiles"):
                    continue  # compose starts it only when its profile is asked for
                check_service(given)
                waits[str(name)] = self._after(given.get("depends_on"))
                if name != MAIN:
                    image = self._image(given)
                    if isinstance(image, Build):
                        found.builds[str(name)] = image
                    made[str(name)] = self._service(str(name), given, "" if isinstance(image, Build) else image)
        with self._telling("main: "):
            main = services[MAIN] or {}
            found.main = self._main(main, alone=not made)
            placed = self._placed(MAIN, main, alone=not made)
        self._follow_links(services, made)
        known = {name: {**service.after, **waits[name]} for name, service in made.items()}
        after = {one: how for one, how in waits[MAIN].items() if one in made}
        if made or placed.files or placed.mounts:
            found.group = self._group(
                {name: service.model_copy(update={"after": known[name]}) for name, service in made.items()},
                placed.model_copy(update={"after": after}),
            )
        return found

    @contextmanager
    def _telling(self, at: str) -> Iterator[None]:
        """Say in an error which file and which service it is about."""
        try:
            yield
        except ConfigError as exc:
            raise type(exc)(f"{self.folder.name}/{self.file.name}: {at}{exc}") from exc

    def _group(self, services: Mapping[str, Service], main: Placed) -> ServiceGroup:
        used = {one.volume for part in (main, *services.values()) for one in part.mounts if one.volume}
        try:
            return ServiceGroup(
                services=services,
                main=main,
                volumes={name: source for name, source in self.volumes.items() if name in used},
                closed=tuple(name for name, closed in self.networks.items() if closed),
                ready_s=self.ready_s,
            )
        except ValidationError as exc:
            raise ConfigError(f"{self.folder.name}/{self.file.name}: {problems(exc, ServiceGroup)}") from exc

    # The file's own volumes and networks

    def _read_volumes(self, given: Mapping[str, Any]) -> None:
        for name, one in given.items():
            one = one or {}
            options = one.get("driver_opts") or {}
            if one.get("external"):
                raise CannotRunError(f"the volume {name} is refused: external data is not part of the task")
            if one.get("driver", "local") != "local" or (options and options.get("type") != "tmpfs"):
                raise CannotRunError(
                    f"the volume {name} is refused: driver and driver_opts can reach the machine's files"
                )
            self.volumes[str(name)] = ""

    def _read_networks(self, given: Mapping[str, Any]) -> None:
        for name, one in given.items():
            one = one or {}
            if one.get("driver", "bridge") not in ("bridge", "overlay") or one.get("driver_opts"):
                raise CannotRunError(
                    f"the network {name} is refused: driver and driver_opts can reach the machine's network"
                )
            if one.get("ipam"):
                raise CannotRunError(f"the network {name} is refused: with ipam, two sandboxes could not run at a time")
            self.networks[str(name)] = bool(one.get("internal"))

    # A service

    def _service(self, name: str, given: Mapping[str, Any], image: str) -> Service:
        added = {values.text(one).upper().removeprefix("CAP_") for one in values.items(given.get("cap_add"))}
        if added - {*CAPABILITIES}:
            raise CannotRunError(f"cap_add {min(added - {*CAPABILITIES})} is refused: {ESCAPES}")
        mode = values.text(given.get("network_mode") or "")
        limits = self._limits(given)
        placed = self._placed(name, given)
        shared = mode.removeprefix("service:") if mode.startswith("service:") else ""
        fields: dict[str, Any] = {
            **placed.model_dump(),
            "image": image,
            "entrypoint": values.words(given.get("entrypoint")),
            "command": values.words(given.get("command")),
            "env": self._env(given),
            "user": values.text(given.get("user") or ""),
            "workdir": values.text(given.get("working_dir") or ""),
            "hostname": values.text(given.get("hostname") or ""),
            "within": shared,
            "health": self._health(given.get("healthcheck")),
            "restart": values.text(given.get("restart") or "no").replace("false", "no"),
            "ulimits": _ulimits(given.get("ulimits") or {}),
            "init": bool(given.get("init")),
            "tty": bool(given.get("tty") or given.get("stdin_open")),
            **{key: value for key, value in limits.items() if value is not None},
        }
        if given.get("shm_size"):
            fields["shm_mb"] = values.megabytes(given["shm_size"])
        try:
            return Service.model_validate(fields)
        except ValidationError as exc:
            raise ConfigError(problems(exc, Service)) from exc

    def _main(self, given: Mapping[str, Any], *, alone: bool) -> MainService:
        if added := values.items(given.get("cap_add")):
            raise CannotRunError(f"cap_add {added[0]} is refused: the agent has no capabilities, not even as root")
        image = self._image(given) if given.get("build") or given.get("image") else ""
        command = [*(values.words(given.get("entrypoint")) or ()), *(values.words(given.get("command")) or ())]
        limits = self._limits(given)
        mounts = [values.volume(one) for one in values.items(given.get("volumes"))]
        return MainService(
            image=None if image in ("", MAIN_IMAGE) else image,
            command="" if _is_idle(command) else shlex.join(command),
            env=self._env(given),
            user=values.text(given.get("user") or ""),
            workdir=values.text(given.get("working_dir") or ""),
            memory_mb=limits["memory_mb"],
            cpus=limits["cpus"],
            pids=limits["pids"],
            health=self._health(given.get("healthcheck")),
            folders=tuple(one.target for one in mounts if one.kind == "volume") if alone else (),
        )

    def _placed(self, name: str, given: Mapping[str, Any], *, alone: bool = False) -> Placed:
        mounts, files = [], {}
        for one in map(values.volume, values.items(given.get("volumes"))):
            mount = self._mount(name, one)
            if isinstance(mount, Mount):
                if not (alone and one.kind == "volume"):  # a folder that nobody shares is like any other
                    mounts.append(mount)
            elif mount is not None:
                files[one.target] = mount
        if not alone:
            mounts += [_in_memory(one) for one in values.items(given.get("tmpfs"))]
        if name == MAIN:
            taken = {one.path for one in mounts}
            mounts += [Mount(path=path, volume=path) for path in sorted(self.logs - taken)]
        hosts = [str(one).replace("=", ":", 1) for one in _pairs(given.get("extra_hosts"))]
        if any("host-gateway" in one for one in hosts):
            raise CannotRunError("extra_hosts host-gateway is refused: it is the address of the machine")
        networks = self._joined(given)
        if own := given.get("container_name"):
            networks = {network: (*names, values.text(own)) for network, names in networks.items()}
        return Placed(networks=networks, mounts=tuple(mounts), files=files, hosts=tuple(hosts))

    def _joined(self, given: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
        """The networks of a service, and its other names there."""
        mode = values.text(given.get("network_mode") or "")
        if mode == "none" or mode.startswith("service:"):
            return {}
        if mode not in ("", "bridge", "default"):
            raise CannotRunError(f"network_mode {mode} is refused: {ESCAPES}")
        wanted = given.get("networks") or ["default"]
        joined = {}
        for name in wanted:
            settings = (wanted[name] or {}) if isinstance(wanted, dict) else {}
            if settings.get("ipv4_address") or settings.get("ipv6_address"):
                raise CannotRunError("a fixed address is refused: with it, two sandboxes could not run at a time")
            if name != "default" and name not in self.networks:
                raise ConfigError(f"the network {name} is not declared under networks")
            joined[str(name)] = tuple(map(values.text, settings.get("aliases") or ()))
        return joined

    def _mount(self, service: str, one: Volume) -> Mount | str | None:
        """A mount; or the file to copy; or None, if nothing has to be done."""
        if one.source in _HOST_LOGS:
            if service == MAIN:
                return None
            if one.source.endswith("VERIFIER_LOGS"):
                raise CannotRunError("a mount of the verifier's logs is refused: the service could write the reward")
            self.logs.add(_HOST_LOGS[one.source])
            self.volumes[_HOST_LOGS[one.source]] = ""
            return Mount(path=one.target, volume=_HOST_LOGS[one.source], read_only=one.read_only)
        if one.kind == "tmpfs":
            return Mount(path=one.target, size_mb=one.size_mb)
        if one.kind == "volume":
            name = one.source or f"{service}:{one.target}"
            if one.source and one.source not in self.volumes:
                raise ConfigError(f"the volume {one.source} is not declared under volumes")
            self.volumes.setdefault(name, "")
            return Mount(path=one.target, volume=name, read_only=one.read_only)
        if one.kind != "bind":
            raise CannotRunError(f"a mount of type {one.kind} is refused: it is not known here")
        return self._bound(one)

    def _bound(self, one: Volume) -> Mount | str:
        if posixpath.basename(one.source.rstrip("/")) == "docker.sock":
            raise CannotRunError(f"the mount of {one.source} is refused: whoever reaches the engine owns the machine")
        path = self._inside(one.source, f"the mount of {one.source}")
        if path.is_file():
            return str(path)
        if path.exists() and not path.is_dir():
            raise CannotRunError(f"the mount of {one.source} is refused: it is neither a file nor a folder")
        self.volumes[str(path)] = str(path) if path.is_dir() else ""
        return Mount(path=one.target, volume=str(path), read_only=one.read_only)

    def _inside(self, given: str, what: str) -> Path:
        """A path of the task's folder, which links cannot leave."""
        path = (self.folder / given).resolve()
        if given.startswith("~") or not path.is_relative_to(self.root):
            raise CannotRunError(f"{what} is refused: only files of the task's own folder can be used")
        return path

    def _image(self, given: Mapping[str, Any]) -> str | Build:
        build = given.get("build")
        if not build:
            if not given.get("image"):
                raise ConfigError("it has neither an image nor a build")
            return plain_name(values.text(given["image"]))
        build = build if isinstance(build, dict) else {"context": build}
        for key, value in build.items():
            if key not in BUILD | BUILD_IGNORED and value not in (None, False, [], {}, ""):
                raise CannotRunError(f"build.{key} is refused: images are built without it")
        given_context = values.text(build.get("context") or ".")
        if "://" in given_context or given_context.startswith("git@"):
            raise CannotRunError(f"a build in {given_context} is refused: only folders of the task can be built")
        context = self._inside(given_context, f"a build in {given_context}")
        if inline := build.get("dockerfile_inline"):
            written = values.text(inline)
        else:
            place = values.text(build.get("dockerfile") or "Dockerfile")
            file = self._inside(str(context / place), f"the Dockerfile {place}")
            try:
                written = file.read_text(encoding="utf-8")
            except FileNotFoundError:
                raise CannotRunError(f"a build in {given_context} has no {place}") from None
            except (OSError, UnicodeDecodeError) as exc:
                raise ConfigError(f"{file}: {exc}") from exc
        args = values.mapping(build.get("args") or {}, self.variables.known)
        return Build(context, written, args, values.text(build.get("target") or ""))

    def _env(self, given: Mapping[str, Any]) -> dict[str, str]:
        found: dict[str, str] = {}
        for one in values.items(given.get("env_file")):
            settings = one if isinstance(one, dict) else {"path": one}
            path = self._inside(values.text(settings.get("path")), f"env_file {settings.get('path')}")
            if path.is_file() or settings.get("required", True):
                found |= values.env_file(path)
        return found | values.mapping(given.get("environment") or {}, self.variables.known)

    def _after(self, given: Any) -> dict[str, StartedAs]:
        if isinstance(given, dict):
            found: dict[str, StartedAs] = {}
            for name, settings in given.items():
                condition = values.text((settings or {}).get("condition", "service_started"))
                if condition not in _CONDITIONS:
                    raise ConfigError(f"depends_on {name}: {condition!r} is none of {', '.join(_CONDITIONS)}")
                found[str(name)] = _CONDITIONS[condition]
            return found
        return dict.fromkeys(map(values.text, values.items(given)), "started")

    def _health(self, given: Any) -> HealthCheck | None:
        if not given:
            return None
        test = given.get("test")
        if given.get("disable") or test in ("NONE", ["NONE"]):
            return HealthCheck(test=("NONE",))
        listed = ("CMD-SHELL", test) if isinstance(test, str) else tuple(map(values.text, test or ()))
        times = {
            f"{key}_s": values.seconds(given[key])
            for key in ("interval", "timeout", "start_period")
            if given.get(key) is not None
        }
        retries = {"retries": int(values.number(given["retries"]))} if given.get("retries") else {}
        try:
            return HealthCheck.model_validate({"test": listed, **times, **retries})
        except ValidationError as exc:
            raise ConfigError(f"healthcheck: {problems(exc, HealthCheck)}") from exc

    def _limits(self, given: Mapping[str, Any]) -> dict[str, Any]:
        limits = (((given.get("deploy") or {}).get("resources") or {}).get("limits")) or {}
        memory = limits.get("memory") or given.get("mem_limit")
        cpus, pids = limits.get("cpus") or given.get("cpus"), limits.get("pids") or given.get("pids_limit")
        return {
            "memory_mb": values.megabytes(memory) if memory else None,
            "cpus": values.number(cpus) if cpus else None,
            "pids": int(values.number(pids)) if pids and values.text(pids) != "-1" else None,
        }

    def _follow_links(self, services: Mapping[str, Any], made: dict[str, Service]) -> None:
        """links: other names for services, which then all of the network know."""
        for given in services.values():
            for link in map(values.text, values.items((given or {}).get("links"))):
                name, _, alias = link.partition(":")
                if alias and name in made:
                    joined = {network: (*names, alias) for network, names in made[name].networks.items()}
                    made[name] = made[name].model_copy(update={"networks": joined})


def _pairs(given: Any) -> list[str]:
    return [f"{name}:{one}" for name, one in given.items()] if isinstance(given, dict) else values.items(given)


def _in_memory(given: Any) -> Mount:
    try:
        return Mount.model_validate(values.in_memory(given))
    except ValidationError as exc:
        raise ConfigError(f"tmpfs {given}: {problems(exc, Mount)}") from exc


def _ulimits(given: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    found = {}
    for name, one in given.items():
        soft, hard = (one.get("soft"), one.get("hard")) if isinstance(one, dict) else (one, one)
        try:
            found[str(name)] = (int(values.text(soft)), int(values.text(hard)))
        except ValueError:
            raise ConfigError(f"ulimits {name}: {one!r} is not a number, nor soft and hard ones") from None
    return {name: limits for name, limits in found.items() if name not in ("fsize", "core")}


def _is_idle(command: list[str]) -> bool:
    """Whether a container with this command only waits."""
    if len(command) == 3 and command[1] in ("-c", "-lc", "-ec"):
        return _IDLE_SCRIPT.fullmatch(command[2]) is not None
    return not command or any(
        tuple(command[: len(one)]) == one and (one == ("sleep",) or len(command) == len(one)) for one in _IDLE
    )
