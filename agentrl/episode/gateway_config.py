"""The configuration of the gateway, the HTTP server between agents and their model: address and certificate."""

from __future__ import annotations

import ipaddress
import re
from typing import Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, model_validator

_REMOTE_RATE = 20.0
"""Maximum number of requests a second in a session, if other machines reach the gateway."""


class GatewayConfig(BaseModel):
    """The address and certificate of the gateway, the HTTP server at which agents reach their model. The default serves
    agents and sandboxes on this machine.

    For agents on other machines, set an address that is not loopback, and either a certificate or a proxy of your own
    with TLS. Each process that plays episodes has its own gateway.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    host: str = "127.0.0.1"
    """Address to listen at. Other machines can reach any address that is not loopback. 0.0.0.0 stands for all addresses
    of this machine."""
    port: int = Field(default=0, ge=0, le=65535)
    """Port to listen at; 0 takes a free port. A run with workers needs 0, because each process has its own gateway."""
    certificate: str | None = None
    """PEM file with the certificate chain. With a certificate, the gateway serves only HTTPS."""
    private_key: str | None = None
    """PEM file with the certificate's private key. Default: the file of `certificate`."""
    public_url: str | None = None
    """The base URL for agents that reach the gateway by another name or through a proxy: `https://agents.example.org`.
    `{port}` stands for the port."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.host:
            raise ValueError("host '' would listen at every address; write 0.0.0.0 if that is meant")
        if self.private_key is not None and self.certificate is None:
            raise ValueError("private_key needs the certificate that it belongs to")
        if self.public_url is None:
            self._check_own_address()
        else:
            _check_url(self.public_url)
            if not self.port and "{port}" not in self.public_url:
                raise ValueError("public_url needs a fixed port, or {port} in it")
        return self

    def _check_own_address(self) -> None:
        """Raises ValueError if agents could not reach the address, or not safely."""
        if self.local:
            return
        if self.certificate is None:
            raise ValueError(
                f"host {self.host} is open to other machines, and keys would cross the network in clear text: give a "
                "certificate, or the public_url of a proxy with TLS (http://... if you trust the network)"
            )
        if is_address(self.host) and ipaddress.ip_address(self.host).is_unspecified:
            raise ValueError(f"no agent can connect to {self.host}; give the public_url, as in https://NAME:{{port}}")

    @property
    def local(self) -> bool:
        """Whether only this machine can reach the address."""
        return is_loopback(self.host)

    @property
    def rate(self) -> float | None:
        """Maximum number of requests a second in a session, with bursts of three times as many. Further requests get
        status 503. None (no limit) if only this machine can reach the gateway."""
        return None if self.local and self.public_url is None else _REMOTE_RATE

    def url(self, port: int) -> str:
        """The base URL for agents, without a slash at the end. `port` is the gateway's port."""
        if self.public_url is not None:
            return self.public_url.replace("{port}", str(port)).rstrip("/")
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'http' if self.certificate is None else 'https'}://{host}:{port}"

    def warning(self, port: int) -> str | None:
        """A warning text if keys and conversations may cross a network unencrypted, else None."""
        url = urlsplit(self.url(port))
        if url.scheme == "https" or is_loopback(url.hostname or ""):
            return None
        return (
            f"agents reach their model at {url.scheme}://{url.netloc} without TLS: whoever is on the way reads keys "
            "and conversations; give gateway.certificate, or an https:// public_url"
        )


def is_address(name: str) -> bool:
    """Whether the name is an IP address."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host."""
    return host == "localhost" or (is_address(host) and ipaddress.ip_address(host).is_loopback)


def _check_url(url: str) -> None:
    parts = urlsplit(url.replace("{port}", "1"))
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or "@" in url:
        raise ValueError(f"public_url {url!r:.80} is no base URL; write https://NAME, with a port or a path if needed")
    if re.search(r"\s", url):
        raise ValueError("public_url holds a space; remove it")
