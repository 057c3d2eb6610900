"""Build images from Dockerfiles: by the engine's API, or with BuildKit for Dockerfiles that the API cannot build.

BuildKit asks the client for files and credentials during a build. The command `docker` is the client here.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import re
import shutil
import tarfile
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Any

from aiodocker import DockerError

from agentrl._util.file_lock import try_lock, unlock
from agentrl.errors import SandboxError
from agentrl_sandbox.command import finish
from agentrl_sandbox.docker import children, context
from agentrl_sandbox.docker.engine import DockerClient

log = logging.getLogger("agentrl")

_LONGEST_S = 7200.0
_LOOK_S = 0.2
_PIECE, _LONGEST_LINE = 64 << 10, 4 << 10
_LAST_LINES, _SAID = 16, 800
_NUMBER = re.compile(r"#\d+ (?:\d+\.\d+ )?")
_NOISE = re.compile(r"-*$|sha256:|transferring |(DONE|CACHED)\b|\[internal\]")
_NO_BUILDKIT = "buildx component is missing"
_AS_IT_IS: dict[str, Any] = {"filter": "fully_trusted"} if hasattr(tarfile, "fully_trusted_filter") else {}
"""Options that unpack a tar file of agentrl unchanged; empty for Python 3.11.3 and older, which have no filters."""
_ELSEWHERE = ("DOCKER_CONTEXT", "DOCKER_TLS", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH", "DOCKER_API_VERSION")
"""Environment variables that would lead the command `docker` to a different engine, or by a different connection."""


async def build(engine: DockerClient, folder: Path, tar: IO[bytes], name: str) -> None:
    """Build an image from a folder, which `context.pack` packed as `tar`. Raises SandboxError with the last lines of
    output."""
    failure, needs = f"{folder}/Dockerfile cannot be built", context.needs_buildkit(folder)
    tar.seek(0)
    try:
        async with asyncio.timeout(_LONGEST_S):
            if needs:
                await _with_buildkit(engine, folder, tar, name, needs)
            else:
                await engine.docker.images.build(fileobj=tar, encoding="identity", tag=name, forcerm=True)
    except TimeoutError as exc:
        raise SandboxError(f"{failure} within {_LONGEST_S / 3600:g} hours; make its steps shorter") from exc
    except DockerError as exc:
        raise SandboxError(f"{failure}: {' '.join(exc.message.split())[-_SAID:]}") from exc


@asynccontextmanager
async def alone(engine: DockerClient, name: str) -> AsyncIterator[None]:
    """Hold a lock within `with`, so that two processes of this user never create the same image on the same engine at
    once."""
    key = hashlib.sha256(f"{engine.address}\0{name}".encode()).hexdigest()[:32]
    file = Path(tempfile.gettempdir(), f"agentrl-build-{os.getuid()}-{key}.lock")
    try:
        while (descriptor := try_lock(file)) is None:  # noqa: ASYNC110 - a foreign process's lock
            await asyncio.sleep(_LOOK_S)
    except OSError as exc:
        raise SandboxError(f"{file} cannot be locked: {exc.strerror}; remove it, or set TMPDIR") from exc
    try:
        yield
    finally:
        unlock(file, descriptor)


async def _with_buildkit(engine: DockerClient, folder: Path, tar: IO[bytes], name: str, needs: str) -> None:
    program = shutil.which("docker")
    if program is None:
        raise _missing(folder, needs, "this machine has no command `docker`")
    log.info("%s: %s needs BuildKit; the image %s is built by %s", folder, needs, name, program)
    variables = {key: value for key, value in os.environ.items() if key not in _ELSEWHERE}
    variables |= {
        "DOCKER_HOST": engine.url.replace("http://", "tcp://", 1),
        "DOCKER_BUILDKIT": "1",
        "BUILDX_BUILDER": "default",
        "BUILDX_NO_DEFAULT_ATTESTATIONS": "1",
    }
    options = ["--progress=plain", "--tag", name, *await _network(engine)]
    try:
        async with _unpacked(tar) as place:
            process = await children.start(
                program, "build", *options, place, env=variables, stdout=DEVNULL, stderr=PIPE
            )
            try:
                output = await _heard(process, folder)
            finally:
                await finish(children.end(process))
    except OSError as exc:
        raise SandboxError(f"{folder}/Dockerfile cannot be built: {exc}") from exc
    if process.returncode and _NO_BUILDKIT in output:
        raise _missing(folder, needs, f"{program} has none")
    if process.returncode:
        newer = f"; if BuildKit must be newer for {needs}, begin the Dockerfile with `# syntax=docker/dockerfile:1`"
        is_old = re.search("unknown (?:flag|instruction)", output, re.IGNORECASE)
        raise SandboxError(f"{folder}/Dockerfile cannot be built: {output}{newer if is_old else ''}")


@asynccontextmanager
async def _unpacked(tar: IO[bytes]) -> AsyncIterator[str]:
    """A folder with the files of the tar file. `docker build -` could read the tar file, but would add `Dockerfile` and
    `.dockerignore` to the image even if .dockerignore excludes both."""
    with tarfile.open(fileobj=tar) as archive:
        place = tempfile.TemporaryDirectory(prefix="agentrl-build-")
        try:
            await finish(asyncio.to_thread(archive.extractall, place.name, **_AS_IT_IS))
            yield place.name
        finally:
            await finish(asyncio.to_thread(place.cleanup))


async def _network(engine: DockerClient) -> list[str]:
    """The network options of a build. On an engine without its usual network, an option makes BuildKit build without a
    network."""
    try:
        await engine.docker._query_json("networks/bridge")
    except DockerError as exc:
        if exc.status != 404:
            raise
        return ["--network=none"]
    return []


async def _heard(process: Process, folder: Path) -> str:
    """Wait for the end of a build, and return the last lines of its output. Log the steps of the build."""
    assert process.stderr is not None
    last, rest = deque[str](maxlen=_LAST_LINES), b""
    while piece := await process.stderr.read(_PIECE):
        *lines, rest = (rest + piece).split(b"\n")
        rest = rest[-_LONGEST_LINE:]
        for line in lines:
            text = _NUMBER.sub("", line[-_LONGEST_LINE:].decode(errors="replace"), 1).strip()
            if _NOISE.match(text):
                continue
            last.append(text)
            if text.startswith("["):
                log.info("%s: %s", folder, text)
    return " ".join(" ".join([*last, rest.decode(errors="replace")]).split())[-_SAID:]


def _missing(folder: Path, needs: str, why: str) -> SandboxError:
    return SandboxError(
        f"{folder}/Dockerfile cannot be built: {needs} needs BuildKit, and {why}; install Docker's command line with "
        f"its plugin buildx, or build it elsewhere with `docker build -t NAME {folder}` and give NAME as the image"
    )
