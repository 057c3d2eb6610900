"""Reads the body of a request, up to a size limit, and decompresses the body if necessary."""

from __future__ import annotations

import asyncio
import sys
import zlib
from collections.abc import Callable
from importlib import import_module
from typing import Any

from aiohttp import web

BODY_BYTES = 64 << 20
"""Maximum length of a body in bytes, as received and decompressed, unless a server sets another limit."""
BODY_S = 300.0
"""Maximum number of seconds until a body has arrived."""
ZSTD = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"


class DeniedError(Exception):
    """A refused request, with its HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


async def body_of(request: web.BaseRequest, most: int = BODY_BYTES) -> bytes:
    """Read the body of a request, of at most `most` bytes. A client that asks before sending the body (`Expect`) is
    told to continue.

    Raises DeniedError.
    """
    if request.headers.get("Expect", "").lower() == "100-continue" and request.transport is not None:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    try:
        async with asyncio.timeout(BODY_S):
            raw = await request.read()
    except web.HTTPRequestEntityTooLarge as exc:
        raise _too_long(most) from exc
    except TimeoutError as exc:
        raise DeniedError(408, f"the body did not arrive within {BODY_S:g} s; send it at once") from exc
    return unpacked(raw, request.headers.get("Content-Encoding", ""), most)


def unpacked(raw: bytes, coding: str, most: int = BODY_BYTES) -> bytes:
    """The decompressed body. Raises DeniedError for an unknown coding, and for a broken or too long body."""
    coding = coding.strip().lower()
    if coding in ("", "identity"):
        return raw
    try:
        return _unpacked(raw, _unpacker(coding, raw), most)
    except DeniedError:
        raise
    except Exception as exc:  # each coding has other errors
        raise DeniedError(400, f"the body is not {coding}, although its Content-Encoding names it: {exc}") from exc


def _unpacked(raw: bytes, make: Callable[[], Any], most: int) -> bytes:
    body = b""
    while raw:  # a body may hold several compressed pieces in a row
        unpacker = make()
        body += unpacker.decompress(raw, most + 1 - len(body))
        if len(body) > most:
            raise _too_long(most)
        if not unpacker.eof:
            raise EOFError("its end is missing")
        raw = unpacker.unused_data
    return body


def _unpacker(coding: str, raw: bytes) -> Callable[[], Any]:
    """A function that makes a decompressor for a content coding. Raises DeniedError for an unsupported coding."""
    if coding in ("gzip", "x-gzip"):
        return lambda: zlib.decompressobj(16 + zlib.MAX_WBITS)
    if coding == "deflate":
        bare = raw[:1] and raw[0] & 15 != 8  # some clients leave zlib's header out
        return lambda: zlib.decompressobj(-zlib.MAX_WBITS if bare else zlib.MAX_WBITS)
    if coding != "zstd":
        raise DeniedError(
            415, f"Content-Encoding: {coding!r:.80} is not served; send the body plain, as gzip or as zstd"
        )
    try:
        return import_module(ZSTD).ZstdDecompressor  # type: ignore[no-any-return]
    except ImportError as exc:
        raise DeniedError(
            415,
            "Content-Encoding: 'zstd' needs a package that is missing: pip install 'agentrl-sdk[zstd]', "
            "or have the client send the body plain",
        ) from exc


def _too_long(most: int) -> DeniedError:
    return DeniedError(413, f"the body has more than {most} bytes; send less")
