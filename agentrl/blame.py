"""Exceptions that are not bugs: a lost connection, a full disk, no memory left. A wrong path is a bug.

Imports no module of agentrl, because the processes of graders load this file alone.
"""

from __future__ import annotations

import errno

_ALWAYS = {
    "agentrl.errors.InfraError",
    "builtins.ConnectionError",
    "builtins.TimeoutError",
    "socket.gaierror",
    "socket.herror",
    "ssl.SSLError",
    "aiohttp.client_exceptions.ClientConnectionError",
    "httpx.NetworkError",
    "httpx.TimeoutException",
    "httpx.RemoteProtocolError",
}
"""Exceptions for which the world is always to blame, as `module.Class`; subclasses count. Importing the classes would
take long."""
_REQUESTS = {"urllib.error.URLError", "requests.exceptions.RequestException"}
"""Exceptions for which the world is to blame, unless an HTTP status or the cause blames the request."""
_ERRNOS = {
    getattr(errno, name)
    for name in (
        *("ENOSPC", "EDQUOT", "EIO", "ENOMEM", "EMFILE", "ENFILE", "ESTALE", "EREMOTEIO", "ENOLCK", "ENOBUFS"),
        *("EAGAIN", "EINTR", "EBUSY", "EADDRINUSE", "EADDRNOTAVAIL", "ENETDOWN", "ENETUNREACH", "ENETRESET"),
        *("EHOSTDOWN", "EHOSTUNREACH", "ENOTCONN", "EPIPE", "ETIMEDOUT"),
    )
    if hasattr(errno, name)
}
_OF_PATHS = FileNotFoundError | PermissionError | FileExistsError | IsADirectoryError | NotADirectoryError
_LATER = (408, 425, 429)
"""HTTP statuses below 500 for which another attempt may succeed."""


def is_the_worlds(exc: BaseException) -> bool:
    """Whether the exception shows a failure outside of the program, such as a lost connection. A missing file, a
    refused permission or an invalid URL is a bug."""
    names = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(exc).__mro__}
    if names & _ALWAYS:
        return True
    if not names & _REQUESTS:
        return _is_the_machines(exc)
    status = _status(exc)
    if status is not None:
        return status >= 500 or status in _LATER
    reason = getattr(exc, "reason", None)  # urllib keeps the cause there
    if reason is not None:
        return isinstance(reason, BaseException) and is_the_worlds(reason)
    return not isinstance(exc, ValueError) or "json.decoder.JSONDecodeError" in names


def _is_the_machines(exc: BaseException) -> bool:
    """Whether an OSError comes from the machine. An OSError without an errno counts, too: if many episodes fail, a
    canary ends the run."""
    if not isinstance(exc, OSError) or isinstance(exc, _OF_PATHS | ValueError):
        return False
    return exc.errno is None or exc.errno in _ERRNOS


def _status(exc: BaseException) -> int | None:
    """The HTTP status in an exception of urllib or requests. None if the exception has no status."""
    status = getattr(exc, "code", None) or getattr(getattr(exc, "response", None), "status_code", None)
    return status if isinstance(status, int) else None
