"""The hosts that a sandbox may reach: the entries of `SandboxSpec.network`, and addresses that are always refused."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import TypeAlias

Address: TypeAlias = IPv4Address | IPv6Address

WEB_PORTS = frozenset({80, 443})
"""The ports that an entry without a port allows."""

_AUTHORITY = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(?::([0-9]{1,5}))?", re.IGNORECASE)
_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_LONGEST_NAME = 253
_METADATA = frozenset(
    map(ipaddress.ip_address, ("168.63.129.16", "100.100.100.200", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254"))
)
"""Addresses from which clouds serve credentials to a machine, in addition to the link-local 169.254.169.254."""
_TRANSLATED = tuple(map(ipaddress.IPv6Network, ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32", "::/96")))
"""Networks of IPv6 addresses that stand for an IPv4 address."""


def split_authority(text: str) -> tuple[str, int | None]:
    """Split `host:port` into host and port. The host is in lower case and has no final dot. An IPv6 address has its
    short form without brackets. Raises ValueError."""
    match = _AUTHORITY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text[:80]!r} is not a host or host:port")
    host, port = match[1].lower(), int(match[2]) if match[2] else None
    if port is not None and not 0 < port < 1 << 16:
        raise ValueError(f"{text[:80]!r} has a port that does not exist")
    if host.startswith("["):
        return str(ipaddress.IPv6Address(host[1:-1])), port
    host = host.removesuffix(".")
    if len(host) > _LONGEST_NAME or not all(_LABEL.fullmatch(label) for label in host.split(".")):
        raise ValueError(f"{text[:80]!r} is not the name of a host")
    return host, port


def literal(host: str) -> Address | None:
    """The host as an address; None for a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class HostEntry:
    """One entry: `pypi.org`, `*.example.org`, `example.org:8443`, `10.0.0.7:8000`, `[2001:db8::1]`."""

    name: str
    """A name or an address. For `*.example.org`, the part after the star, with the dot."""
    ports: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> HostEntry:
        """Parse an entry. Raises ValueError, with the remedy."""
        if "/" in text:
            raise ValueError(f"{text!r} is a URL or a network; write the host only, such as pypi.org")
        if not text.isascii():
            raise ValueError(f"{text!r}: write the name in ASCII, as xn--...")
        if text == "*":
            raise ValueError("'*' covers every host; write network: open")
        wild = text.startswith("*.")
        name, port = split_authority(text[2:] if wild else text)
        if wild and "." not in name:
            raise ValueError(f"{text!r} covers too much; write a domain such as *.example.org, or network: open")
        address = literal(name)
        if (address is None and name.rpartition(".")[2].isdigit()) or (wild and address is not None):
            raise ValueError(f"{text!r} is neither a name nor an address")
        if address is not None and (why := never(address)):
            raise ValueError(f"{text!r} cannot be allowed: it is {why}")
        ports = WEB_PORTS if port is None else frozenset({port})
        return cls(f".{name}" if wild else name, ports)

    def covers(self, host: str, port: int) -> bool:
        """Whether the entry covers a host returned by `split_authority`. A star stands for any number of labels, at
        least one.
        """
        if port not in self.ports:
            return False
        return host == self.name or (self.name.startswith(".") and literal(host) is None and host.endswith(self.name))


class AllowedHosts:
    """The hosts of a spec's `network`. A private address is allowed only if the list has this address itself."""

    def __init__(self, entries: Iterable[str]) -> None:
        self._entries = tuple(map(HostEntry.parse, entries))
        self._addresses = frozenset(filter(None, (literal(entry.name) for entry in self._entries)))

    def has(self, host: str, port: int) -> bool:
        """Whether an entry covers this host and port."""
        return any(entry.covers(host, port) for entry in self._entries)

    def refusal(self, address: Address) -> str:
        """Why the address to which a host name resolved is refused; empty for an allowed address."""
        if why := never(address):
            return why
        plain_address = address.ipv4_mapped if isinstance(address, IPv6Address) and address.ipv4_mapped else address
        if plain_address.is_global or plain_address in self._addresses:
            return ""
        return "an address that is not public; to allow it, name the address in `network` too"


def never(address: Address) -> str:
    """Why an address is refused whatever the entries; empty if an entry can allow the address."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return never(address.ipv4_mapped)
        if address.scope_id is not None:
            return "an address of one network device"
        if any(address in network for network in _TRANSLATED) and address != IPv6Address("::1"):
            return "an IPv4 address in disguise"
    if address in _METADATA or address.is_link_local:
        return "a link-local or metadata address, which may serve credentials"
    if address.is_multicast or address.is_unspecified or address == IPv4Address("255.255.255.255"):
        return "no address of one host"
    return ""
