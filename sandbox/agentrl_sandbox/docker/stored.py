"""Files of a container as stored by the engine: no program of the container reads these files."""

from __future__ import annotations

import io
import posixpath
import tarfile
from typing import TYPE_CHECKING

from aiodocker import DockerError

if TYPE_CHECKING:
    from agentrl_sandbox.docker.engine import DockerClient

_HEADERS = 64 << 10
"""Bytes of a file's archive beside the content."""


async def stored(engine: DockerClient, container: str, path: str, max_bytes: int) -> bytes:
    """The beginning of a plain file, at most `max_bytes`. Raises FileNotFoundError if there is none."""
    sent = bytearray()
    try:
        query = engine.docker._query
        async with query(f"containers/{container}/archive", "GET", params={"path": path}) as response:
            async for piece in response.content.iter_chunked(1 << 16):
                sent += piece
                if len(sent) > max_bytes + _HEADERS:
                    break
    except DockerError as exc:
        if exc.status != 404:
            raise
        raise FileNotFoundError(path) from exc
    try:
        with tarfile.open(fileobj=io.BytesIO(bytes(sent)), mode="r:") as archive:
            member = archive.next()
            if member is not None and member.isreg() and member.name == posixpath.basename(path):
                start = member.offset_data
                return bytes(sent[start : start + min(member.size, max_bytes)])
    except tarfile.TarError:
        pass
    raise FileNotFoundError(path)
