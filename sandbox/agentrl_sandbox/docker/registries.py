"""Parse image names, and read the registry credentials of Docker's client."""

from __future__ import annotations

import asyncio
import base64
import json
from dataclasses import dataclass
from typing import Any

from agentrl.errors import ConfigError
from agentrl_sandbox.docker.addresses import settings

_HUB = "docker.io"
_HUB_KEY = "https://index.docker.io/v1/"
"""The key of Docker Hub in config.json."""
_TOKEN = "<token>"
"""A credential helper replies with this user name if the secret is an identity token."""
_HELPER_S = 30.0


@dataclass(frozen=True, slots=True)
class ImageName:
    """The parts of a name in the form of `docker pull`."""

    registry: str
    repository: str
    version: str
    """The tag or digest with its separator: `:TAG` or `@DIGEST`."""

    @classmethod
    def parse(cls, name: str) -> ImageName:
        first, slash, rest = name.partition("/")
        has_registry = bool(slash) and ("." in first or ":" in first or first == "localhost")
        registry, path = (first, rest) if has_registry else (_HUB, name)
        repository, separator, digest = path.partition("@")
        version = f"@{digest}" if separator else ""
        before, colon, tag = repository.rpartition(":")
        if colon:
            repository, version = before, version or f":{tag}"
        if registry == _HUB and "/" not in repository:
            repository = f"library/{repository}"
        return cls(registry, repository, version or ":latest")

    def __str__(self) -> str:
        return f"{self.registry}/{self.repository}{self.version}"


async def credentials(registry: str) -> str | None:
    """The header X-Registry-Auth for a registry, from Docker's config.json and credential helpers. None without
    credentials. Raises ConfigError if a helper fails.
    """
    config = await asyncio.to_thread(settings)
    key = _HUB_KEY if registry == _HUB else registry
    helper = (config.get("credHelpers") or {}).get(key) or config.get("credsStore")
    secrets = await _asked(str(helper), key) if helper else _written(config.get("auths") or {}, key)
    if secrets is None:
        return None
    return base64.urlsafe_b64encode(json.dumps({**secrets, "serveraddress": key}).encode()).decode()


def _written(auths: dict[str, Any], key: str) -> dict[str, str] | None:
    """The credentials in config.json itself, where `docker login` writes them if there is no helper."""
    entry = next((auths[name] for name in (key, f"https://{key}", f"http://{key}") if name in auths), None) or {}
    if token := entry.get("identitytoken"):
        return {"identitytoken": str(token)}
    if not entry.get("auth"):
        return None
    try:
        user, _, password = base64.b64decode(entry["auth"]).decode().partition(":")
    except ValueError as exc:
        raise ConfigError(f"Docker's config.json: the auth of {key} is not base64; use docker login") from exc
    return {"username": user, "password": password.rstrip("\0")}


async def _asked(helper: str, key: str) -> dict[str, str] | None:
    """The credentials from the program docker-credential-HELPER."""
    program = f"docker-credential-{helper}"
    pipe = asyncio.subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(program, "get", stdin=pipe, stdout=pipe, stderr=pipe)
        async with asyncio.timeout(_HELPER_S):
            output, _ = await process.communicate(key.encode())
    except (OSError, TimeoutError) as exc:
        raise ConfigError(f"{program}, which Docker's config.json names for {key}, does not work: {exc}") from exc
    if process.returncode:
        if b"not found" in output:
            return None
        raise ConfigError(f"{program} has no credentials for {key}: {output.decode(errors='replace').strip()}")
    secrets = json.loads(output)
    if secrets["Username"] == _TOKEN:
        return {"identitytoken": str(secrets["Secret"])}
    return {"username": str(secrets["Username"]), "password": str(secrets["Secret"])}
