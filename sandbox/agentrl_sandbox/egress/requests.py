"""Parse the head of a request to a proxy strictly: ambiguous requests are refused."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from agentrl_sandbox.egress.hosts import split_authority

LONGEST_HEAD = 16 << 10
_MOST_HEADERS = 100
_LINE = re.compile(rb"([A-Z]{1,20}) ([\x21-\x7e]{1,8000}) HTTP/1\.([01])")
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*?)[ \t]*")
_URL = re.compile(r"http://([^/?#]*)(/[^#]*|\?[^#]*)?", re.IGNORECASE)
_LENGTH = re.compile(r"[0-9]{1,15}")
_ONE_HOP = frozenset(
    [
        "connection",
        "proxy-connection",
        "keep-alive",
        "proxy-authorization",
        "proxy-authenticate",
        "te",
        "trailer",
        "upgrade",
    ]
)
"""Headers that are for the proxy itself, and are not sent to the host."""
_OURS = frozenset(("host", "content-length", "transfer-encoding"))
"""Headers that the proxy writes anew."""


class BadRequestError(Exception):
    """The request is refused, whatever its host. `status` is the HTTP status of the response."""

    def __init__(self, why: str, status: int = 400) -> None:
        super().__init__(why)
        self.status = status


@dataclass(frozen=True, slots=True)
class ProxyRequest:
    """A request to a proxy: to connect to a host (`is_tunnel`), or to send a request on to a host."""

    method: str
    host: str
    port: int
    target: str
    """The path and query for the host; empty for a tunnel."""
    version: int
    """The minor version of HTTP: 1 for HTTP/1.1, 0 for HTTP/1.0."""
    headers: Sequence[tuple[str, str]]
    """The headers for the host, without Host, Content-Length and Transfer-Encoding."""
    length: int | None
    """Bytes of the body. None: the body is chunked."""

    @property
    def is_tunnel(self) -> bool:
        return self.method == "CONNECT"

    @property
    def address(self) -> str:
        """The target host as `host:port`."""
        return authority(self.host, self.port)

    def head(self) -> bytes:
        """The head to send to the host. The head asks the host to close the connection after the answer."""
        headers = {"Host": self.host_header, "Connection": "close"}
        if self.length is None:
            headers["Transfer-Encoding"] = "chunked"
        elif self.length or self.method not in ("GET", "HEAD"):
            headers["Content-Length"] = str(self.length)
        lines = [f"{self.method} {self.target} HTTP/1.{self.version}"]
        lines += [f"{name}: {value}" for name, value in [*headers.items(), *self.headers]]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    @property
    def host_header(self) -> str:
        return authority(self.host, self.port).removesuffix(":80")


def authority(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_head(head: bytes) -> ProxyRequest:
    """Parse a head, which ends with an empty line. Raises BadRequestError."""
    first, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    match = _LINE.fullmatch(first)
    if match is None:
        raise BadRequestError("the request line cannot be read")
    method, target, version = match[1].decode(), match[2].decode(), int(match[3])
    if len(lines) > _MOST_HEADERS:
        raise BadRequestError("too many headers", 431)
    headers = list(map(_header, lines))
    host, port, path = _tunnel(target) if method == "CONNECT" else _absolute(target)
    _check_host(headers, host, port, version, method)
    named = {name.strip().lower() for value in _all(headers, "connection") for name in value.split(",")}
    forwarded = [(name, value) for name, value in headers if name.lower() not in _ONE_HOP | _OURS | named]
    length = 0 if method == "CONNECT" else _length(headers, version)
    return ProxyRequest(method, host, port, path, version, forwarded, length)


def _header(line: bytes) -> tuple[str, str]:
    match = _HEADER.fullmatch(line)
    if match is None:
        raise BadRequestError("a header cannot be read")
    return match[1].decode(), match[2].decode("latin-1")


def _all(headers: Sequence[tuple[str, str]], header: str) -> list[str]:
    return [value for name, value in headers if name.lower() == header]


def _tunnel(target: str) -> tuple[str, int, str]:
    host, port = _split(target)
    if port is None:
        raise BadRequestError("CONNECT needs host:port")
    return host, port, ""


def _absolute(target: str) -> tuple[str, int, str]:
    match = _URL.fullmatch(target)
    if match is None:
        raise BadRequestError("this is a proxy: it takes http://host/path, and CONNECT host:port for https")
    host, port = _split(match[1])
    path = match[2] or "/"
    return host, 80 if port is None else port, path if path.startswith("/") else f"/{path}"


def _split(text: str) -> tuple[str, int | None]:
    try:
        return split_authority(text)
    except ValueError as exc:
        raise BadRequestError(str(exc)) from exc


def _check_host(headers: Sequence[tuple[str, str]], host: str, port: int, version: int, method: str) -> None:
    """Raises BadRequestError unless the header Host occurs once and agrees with the target. HTTP/1.0 needs no Host."""
    hosts = _all(headers, "host")
    if len(hosts) > 1 or (version == 1 and not hosts):
        raise BadRequestError("a request needs one header Host")
    if not hosts:
        return
    own_host, own_port = _split(hosts[0])
    assumed = port if method == "CONNECT" else 80
    if (own_host, assumed if own_port is None else own_port) != (host, port):
        raise BadRequestError(
            f"the header Host names {hosts[0][:80]!r}, but the request is for {authority(host, port)}"
        )


def _length(headers: Sequence[tuple[str, str]], version: int) -> int | None:
    """Bytes of the body. None: the body is chunked."""
    coding, length = _all(headers, "transfer-encoding"), _all(headers, "content-length")
    if coding:
        if [value.lower() for value in coding] != ["chunked"] or length or version == 0:
            raise BadRequestError("a body is framed by Content-Length, or by Transfer-Encoding: chunked alone")
        return None
    if len(length) > 1 or not all(map(_LENGTH.fullmatch, length)):
        raise BadRequestError("Content-Length is not one number")
    return int(length[0]) if length else 0
