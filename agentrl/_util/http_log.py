"""The log of aiohttp's servers, without the tracebacks of requests that are not HTTP/1.1."""

from __future__ import annotations

import logging

from aiohttp.http_exceptions import BadHttpMessage


def server_log(name: str) -> logging.Logger:
    """The logger of that name, for the argument `logger` of aiohttp's runners and servers.

    aiohttp logs a traceback for a request that it cannot parse. Routers probe with the first bytes of HTTP/2, and
    scanners with anything. Such a request is a line of level DEBUG here, and still gets status 400.
    """
    log = logging.getLogger(name)
    log.addFilter(_shorten)
    return log


def _shorten(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    if not isinstance(error, BadHttpMessage):
        return True
    words = " ".join(f"{record.getMessage()}: {error}".split())
    record.levelno, record.levelname = logging.DEBUG, logging.getLevelName(logging.DEBUG)
    record.msg, record.args, record.exc_info, record.exc_text = words[:200], None, None, None
    return logging.getLogger(record.name).isEnabledFor(logging.DEBUG)
