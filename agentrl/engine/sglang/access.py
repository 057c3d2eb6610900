"""Decides who may use the server: everyone with the key, or without a key everyone except web pages (docs/serve.md)."""

from __future__ import annotations

import hmac
import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web
from aiohttp.typedefs import Middleware
from yarl import URL

from agentrl.errors import ConfigError

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_PUBLIC_PATHS = frozenset({"/health", "/health_generate"})
"""Paths that routers and supervisors request without a key and under any host name. The responses reveal no secrets."""
_OF_TRAINERS = ("weight", "memory_occupation")
"""Parts of the paths that change the weights or the memory."""


@dataclass(frozen=True, slots=True)
class Access:
    """The rules of a server that listens at `host`. Raises ConfigError for an invalid host or key."""

    host: str
    api_key: str | None = None

    def __post_init__(self) -> None:
        if not self.host:
            raise ConfigError("host '' would listen at every address; write 0.0.0.0 if that is meant")
        if self.api_key is not None and not re.fullmatch(r"[\x21-\x7e]+", self.api_key):
            raise ConfigError("the API key must be printable ASCII without spaces, and not empty")

    def refusal(self, request: web.Request) -> tuple[int, str] | None:
        """The status and the reason if the request is refused. None for an allowed request."""
        if request.path in _PUBLIC_PATHS:
            return None
        reason = self.refuse_page(request) if self.api_key is None else self._stranger(request, self.api_key)
        if reason is None and _is_of_trainer(request) and request.content_type != "application/json":
            reason = 415, "a request that changes weights needs the Content-Type application/json"
        return reason

    def _stranger(self, request: web.Request, api_key: str) -> tuple[int, str] | None:
        credentials = request.headers.get("Authorization", "").encode(errors="surrogateescape")
        if hmac.compare_digest(credentials, f"Bearer {api_key}".encode()):
            return None
        return 401, (
            "this server wants its API key as 'Authorization: Bearer KEY'; agentrl sends what "
            "SGLangEngine(api_key=...) or the environment variable AGENTRL_API_KEY names"
        )

    def refuse_page(self, request: web.BaseRequest) -> tuple[int, str] | None:
        """The status and the reason if a web page sent the request, else None. A page could reach servers that its
        author cannot reach."""
        host = request.headers.get("Host")
        if host is not None and not self._is_own_name(host):
            return 403, (
                "the Host header does not name this server, as in DNS rebinding; "
                "use its IP address, start it with --host NAME, or give it an --api-key"
            )
        origin = request.headers.get("Origin")
        foreign = origin is not None and origin != f"{request.scheme}://{host}"
        if foreign or request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            return 403, "this server takes no requests from a web page of another origin"
        return None

    def _is_own_name(self, host_header: str) -> bool:
        """Whether the Host header is an address or a name of this machine. A stranger could let any other name resolve
        to this machine."""
        try:
            name = URL(f"http://{host_header}").host or ""
        except ValueError:
            return False
        hostname = socket.gethostname().lower()
        return _is_address(name) or name in {"localhost", self.host.lower(), hostname, hostname.partition(".")[0]} - {
            ""
        }


def exposure(host: str, api_key: str | None, may: str = "generate, abort and change the weights") -> str | None:
    """A warning if people other than this machine's users can use the server, else None. `may` is the text about what a
    user of the server can do."""
    if api_key is not None or host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback):
        return None
    return (
        f"listening at {host} without a key: anyone who reaches it may {may}; "
        "give it an --api-key, or keep the port behind a firewall"
    )


def guard(access: Access) -> Middleware:
    """A middleware that enforces the rules."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if (refused := access.refusal(request)) is None:
            return await handler(request)
        status, reason = refused
        return web.json_response({"error": {"message": reason}}, status=status)

    return check


def _is_of_trainer(request: web.Request) -> bool:
    return request.method == "POST" and any(part in request.path for part in _OF_TRAINERS)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
