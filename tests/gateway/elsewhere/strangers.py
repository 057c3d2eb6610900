"""What a stranger does to a gateway that it reaches: strangers.py URL KEY CA. It prints what it saw as JSON.

It has one key, for its own session. It runs in another network namespace, with the standard library only.
"""

from __future__ import annotations

import json
import socket
import ssl
import sys
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlsplit

URL, KEY, CA = sys.argv[1:4]
TLS = ssl.create_default_context(cafile=CA) if CA else None
ASK = {"model": "m", "messages": [{"role": "user", "content": "What do the others say?"}]}


def ask(path: str, body: Any = None, **headers: str) -> tuple[int, str]:
    """The status and the text of an answer."""
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(URL + path, data, {"Content-Type": "application/json", **given})
    try:
        with urllib.request.urlopen(request, timeout=10, context=TLS) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def connect() -> socket.socket:
    """A bare connection, with TLS if the gateway has it."""
    parts = urlsplit(URL)
    plain = socket.create_connection((parts.hostname, parts.port), timeout=10)
    return TLS.wrap_socket(plain, server_hostname=parts.hostname) if TLS else plain


def told(raw: bytes) -> bytes:
    """What comes back on a bare connection until it is closed."""
    with connect() as plain:
        plain.sendall(raw)
        found = b""
        while piece := plain.recv(65536):
            found += piece
        return found


def without_tls() -> str:
    """What a client gets that speaks plain HTTP."""
    parts = urlsplit(URL)
    try:
        with socket.create_connection((parts.hostname, parts.port), timeout=10) as plain:
            plain.sendall(f"GET /v1/models HTTP/1.1\r\nHost: x\r\nx-api-key: {KEY}\r\n\r\n".encode())
            return plain.recv(100).decode(errors="replace")
    except ConnectionError:
        return ""


def silence(raw: bytes) -> float:
    """Send the beginning of a request, and wait until the gateway closes the connection."""
    with connect() as plain:
        plain.sendall(raw)
        return len(plain.recv(100))


chat = "/v1/chat/completions"
bearer = {"Authorization": f"Bearer {KEY}"}
seen: dict[str, Any] = {
    "health": ask("/health"),
    "no key": [ask(path, ASK)[0] for path in (chat, "/v1/messages", "/v1/responses", "/v1/messages/count_tokens")],
    "no key, models": ask("/v1/models")[0],
    "wrong keys": [
        ask(chat, ASK, Authorization="Bearer sk-0")[0],
        ask(chat, ASK, x_api_key="")[0],
        ask(f"/s/{KEY[:-1]}{chat}", ASK)[0],
        ask(f"/s/..%2f{KEY}{chat}", ASK)[0],
        ask("/s//v1/models")[0],
    ],
    "unknown path": ask("/v1/sessions", **bearer),
    "own": ask(chat, ASK, **bearer),
    "own, in the path": ask(f"/s/{KEY}{chat}", ASK)[0],
    "large": ask(chat, {**ASK, "padding": "x" * (2 << 20)}, **bearer)[0],
    "reset": ask("/connection-was-reset", {}, **bearer)[0],
    "smuggled": told(
        f"POST {chat} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nContent-Length: 4\r\n"
        "Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n0\r\n\r\nGET /v1/models HTTP/1.1\r\n\r\n".encode()
    ).decode(errors="replace")[:400],
    "without TLS": without_tls() if TLS else "",
    "closed without a request": silence(b""),
    "closed within a head": silence(b"POST /v1/messages HTTP/1.1\r\nx-api-key: "),
    "burst": [ask("/v1/models", **bearer)[0] for _ in range(40)],
    "loopback": socket.socket().connect_ex(("127.0.0.1", urlsplit(URL).port or 0)) != 0,
}
print(json.dumps(seen))
