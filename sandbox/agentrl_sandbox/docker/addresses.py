"""Find the address of an engine by the rules of Docker's client: DOCKER_HOST and contexts."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from agentrl.errors import ConfigError

_SCHEMES = ("unix", "tcp", "http", "ssh")


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """The address of an engine."""

    name: str
    """The address or context as the user wrote it, for messages."""
    address: str
    """`unix://PATH`, `tcp://HOST:PORT` or `ssh://USER@HOST:PORT/PATH`."""
    tls: tuple[str, ...] = ()
    """The options with which Docker's client reaches an engine with TLS; empty without TLS."""

    @property
    def is_local(self) -> bool:
        """Whether paths of this machine mean the same to the engine, judging by the address."""
        return self.address.startswith("unix://")


def engine_address(name: str = "") -> EngineAddress:
    """The address of the engine `name`, which is an address or a context of Docker. Without a name: DOCKER_HOST, else
    DOCKER_CONTEXT, else Docker's current context, else the first existing socket of Docker.

    Raises ConfigError for an unusable address or context.
    """
    chosen = name or os.environ.get("DOCKER_HOST") or os.environ.get("DOCKER_CONTEXT") or _current()
    if "://" in chosen:
        return EngineAddress(chosen, _checked(chosen), _tls_of_variables(chosen))
    if chosen and chosen != "default":
        return _of_context(chosen)
    return EngineAddress("default", f"unix://{_socket()}")


def _checked(address: str) -> str:
    parts = urlsplit(address)
    if parts.scheme not in _SCHEMES:
        raise ConfigError(f"{address}: an engine's address begins with unix://, tcp:// or ssh://")
    if parts.scheme == "ssh" and (not parts.hostname or parts.password is not None):
        raise ConfigError(f"{address}: write ssh://USER@HOST or ssh://USER@HOST:PORT, and log in by a key")
    if parts.scheme == "ssh" and (parts.hostname or "").startswith("-"):
        raise ConfigError(f"{address}: a host's name does not begin with a dash")
    return address


def _socket() -> str:
    runtime = os.environ.get("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")
    places = ["/var/run/docker.sock", f"{Path.home()}/.docker/run/docker.sock", f"{runtime}/docker.sock"]
    return next((place for place in places if Path(place).is_socket()), places[0])


def folder() -> Path:
    """The folder of Docker's client: DOCKER_CONFIG, else ~/.docker."""
    return Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker")


def settings() -> dict[str, Any]:
    """The content of Docker's config.json; empty if the file is missing."""
    file = folder() / "config.json"
    try:
        values: dict[str, Any] = json.loads(file.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as exc:
        raise ConfigError(f"{file} cannot be read: {exc}") from exc
    return values


def _current() -> str:
    return str(settings().get("currentContext") or "")


def _of_context(name: str) -> EngineAddress:
    """The address of the engine of a context, which `docker context create` has stored."""
    digest = hashlib.sha256(name.encode()).hexdigest()
    try:
        meta = json.loads((folder() / "contexts" / "meta" / digest / "meta.json").read_text())
        endpoint = meta["Endpoints"]["docker"]
        address = _checked(endpoint["Host"])
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise ConfigError(
            f"{name!r} is neither an engine's address nor a context of Docker's; write ssh://USER@HOST, "
            "or see `docker context ls`"
        ) from exc
    files = folder() / "contexts" / "tls" / digest / "docker"
    uses_tls = address.startswith("tcp://") and (files.is_dir() or endpoint.get("SkipTLSVerify"))
    return EngineAddress(name, address, ("--context", name) if uses_tls else ())


def _tls_of_variables(address: str) -> tuple[str, ...]:
    """The TLS options for an address, from DOCKER_TLS_VERIFY and DOCKER_TLS. Docker's client reads the certificates."""
    uses_tls = address.startswith("tcp://") and (os.environ.get("DOCKER_TLS_VERIFY") or os.environ.get("DOCKER_TLS"))
    return ("--host", address) if uses_tls else ()
