"""The address of an engine by the rules of Docker's own client: DOCKER_HOST, contexts, and certificates for TLS."""

from __future__ import annotations

import hashlib
import json
import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from agentrl.errors import ConfigError

_SCHEMES = ("unix", "tcp", "http", "https", "ssh")


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """The address of one engine."""

    name: str
    """The user's spelling, for messages."""
    address: str
    """`unix://PATH`, `tcp://HOST:PORT` or `ssh://USER@HOST:PORT/PATH`."""
    tls: ssl.SSLContext | None = None

    @property
    def is_local(self) -> bool:
        """Whether paths of this machine mean the same to the engine, judging by the address."""
        return self.address.startswith("unix://")


def engine_address(name: str = "") -> EngineAddress:
    """The engine of a name: an address, or a context of Docker. Without a name: DOCKER_HOST, else DOCKER_CONTEXT, else
    Docker's current context, else the first existing socket of Docker.

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
    """Docker's config.json; empty if there is none."""
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
    """An engine described by `docker context create`."""
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
    trusting = bool(endpoint.get("SkipTLSVerify"))
    uses_tls = address.startswith("tcp://") and (files.is_dir() or trusting)
    return EngineAddress(name, address, _tls(files, verify=not trusting) if uses_tls else None)


def _tls_of_variables(address: str) -> ssl.SSLContext | None:
    """TLS according to DOCKER_TLS_VERIFY and DOCKER_TLS."""
    flags = {name: bool(os.environ.get(name)) for name in ("DOCKER_TLS_VERIFY", "DOCKER_TLS")}
    verify = flags["DOCKER_TLS_VERIFY"] or not flags["DOCKER_TLS"]
    encrypted = address.startswith("https://") or (address.startswith("tcp://") and any(flags.values()))
    return _tls(Path(os.environ.get("DOCKER_CERT_PATH") or folder()), verify=verify) if encrypted else None


def _tls(files: Path, *, verify: bool) -> ssl.SSLContext:
    """A context with the certificates in a folder, under Docker's file names."""
    authority, cert, key = (files / name for name in ("ca.pem", "cert.pem", "key.pem"))
    try:
        context = ssl.create_default_context(cafile=str(authority) if authority.is_file() else None)
        if not verify:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if cert.is_file():
            context.load_cert_chain(cert, key)
    except OSError as exc:  # ssl.SSLError is one
        raise ConfigError(f"the certificates in {files} cannot be used: {exc}; see DOCKER_CERT_PATH") from exc
    return context
