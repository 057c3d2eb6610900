"""Pulls ahead of need: each image of a task set onto each host, within a disk budget and a rate.

The engines remember finished layers, so a new pull resumes a killed pull.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from agentrl._util.concurrency import gather
from agentrl.errors import ConfigError, SandboxError
from agentrl_sandbox.docker.backend import DockerBackend
from agentrl_sandbox.docker.engine import DockerClient
from agentrl_sandbox.docker.images import Images
from agentrl_sandbox.reaper import paused

log = logging.getLogger("agentrl")

_TRIES = 3
_PAUSE_S = 2.0
"""Seconds before a failed pull is tried again, doubled each time."""
_ASKED_AT_ONCE = 16
_DF_PAUSES_S = (0.5, 1.0, 2.0, 4.0, 8.0, 0.0)
"""Pauses between attempts to measure the disk, in seconds: an engine measures for one client at a time."""
_SMALL = 32 << 20
"""Bytes."""
_FINAL = ("not found", "manifest unknown", "denied", "unauthorized", "no basic auth", "invalid reference")
"""Words in registry errors for which a retry is useless."""

Outcome: TypeAlias = Literal["there", "pulled", "no room", "failed"]


@dataclass(frozen=True, slots=True)
class PullSettings:
    """The settings of pulls. The bounds apply to each host."""

    mirror: str = ""
    """A registry, HOST:PORT or HOST:PORT/PREFIX, asked first."""
    at_a_time: int = 4
    """Pulls at a time."""
    an_hour: float = float("inf")
    """Pulls begun in an hour."""
    disk_bytes: float = float("inf")
    """The bound for all images of the engine together, unpacked."""


@dataclass(frozen=True, slots=True)
class ImageOutcome:
    """The outcome of one image on one host."""

    host: str
    image: str
    outcome: Outcome
    reason: str = ""
    seconds: float = 0.0


class PullListener(Protocol):
    """Hears the events of a long pull."""

    def missing(self, host: str, missing: int, images: int) -> None:
        """Called before the first pull on a host, with the number of missing images."""

    def done(self, outcome: ImageOutcome) -> None:
        """One image is done, on one host."""

    def progress(self, host: str, image: str, done: int, size: int) -> None:
        """`done` of `size` bytes have arrived. `size` grows as layers are announced."""


async def pull_images(
    backend: str, images: Sequence[str], settings: PullSettings, listener: PullListener
) -> list[ImageOutcome]:
    """Pull, build or import each image on each host of a back end.

    Raises ConfigError if the back end has no engines, and SandboxError if a host does not answer.
    """
    names = list(dict.fromkeys(images))
    with paused():
        results = await gather(_on_host(host, names, settings, listener) for host in hosts_of(backend))
    return [outcome for result in results for outcome in result]


async def missing_images(backend: str, images: Sequence[str]) -> Mapping[str, Sequence[str]]:
    """The missing images of each host. A silent host is left out."""
    names = list(dict.fromkeys(images))

    async def one(host: str) -> tuple[str, Sequence[str]] | None:
        try:
            with paused():
                async with DockerBackend(host) as opened:
                    engine, stored, _ = opened.parts
                    return engine.name, await _missing(stored, names)
        except SandboxError:
            return None

    return dict(filter(None, await gather(one(host) for host in hosts_of(backend))))


def hosts_of(backend: str) -> list[str]:
    """The names of a back end's engines. Raises ConfigError for a back end without engines."""
    kind, _, names = backend.partition(":")
    if kind not in ("docker", "auto"):
        raise ConfigError(f"back end {backend!r} has no engine that pulls images; name docker, or docker:HOST,HOST")
    return [name.strip() for name in names.split(",")]


async def _missing(stored: Images, names: Sequence[str]) -> list[str]:
    room = asyncio.Semaphore(_ASKED_AT_ONCE)

    async def one(image: str) -> bool:
        async with room:
            return await stored.has(image)

    flags = await gather(one(image) for image in names)
    return [image for image, is_stored in zip(names, flags, strict=True) if not is_stored]


async def _on_host(
    host: str, names: Sequence[str], settings: PullSettings, listener: PullListener
) -> list[ImageOutcome]:
    async with DockerBackend(host) as opened:
        engine, stored, _ = opened.parts
        missing = await _missing(stored, names)
        listener.missing(engine.name, len(missing), len(names))
        present = [ImageOutcome(engine.name, image, "there") for image in names if image not in missing]
        disk = _Disk(engine, settings.disk_bytes)
        await disk.measure()
        pull = _HostPull(engine.name, stored, disk, settings, listener)
        await pull.trim([outcome.image for outcome in present])
        outcomes = await gather(pull.one(image) for image in missing)
        for outcome in outcomes:
            if outcome.outcome == "no room":  # the engine may have finished before the cancellation
                await stored.remove(outcome.image)
        return [*present, *outcomes]


class _NoRoomError(Exception):
    """An image does not fit into the disk budget."""


@dataclass(slots=True)
class _Disk:
    """The disk use of an engine's images, and the least disk use of unfinished pulls."""

    engine: DockerClient
    limit: float
    used: int = 0
    coming: dict[str, int] = field(default_factory=dict)
    measuring: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def measure(self) -> None:
        if self.limit == float("inf"):
            return
        async with self.measuring:
            for pause in _DF_PAUSES_S:
                try:
                    with self.engine.telling("the size of all images"):
                        self.used = int((await self.engine.docker._query_json("system/df"))["LayersSize"] or 0)
                except SandboxError as exc:
                    if "already running" not in str(exc) or not pause:
                        raise
                    await asyncio.sleep(pause)
                else:
                    return

    @property
    def is_over(self) -> bool:
        return self.used > self.limit

    def expect(self, image: str, done: int, size: int) -> None:
        """Raises _NoRoomError if an image of this size cannot fit beside the other images, and much is still to come.

        A small rest is let through: the engine would complete the pull before the cancellation arrives.
        """
        self.coming[image] = size
        if self.used + sum(self.coming.values()) > self.limit and size - done > _SMALL:
            raise _NoRoomError


class _HostPull:
    """The pulls of one host."""

    def __init__(self, host: str, stored: Images, disk: _Disk, settings: PullSettings, listener: PullListener) -> None:
        self._host, self._stored, self._disk, self._settings, self._listener = host, stored, disk, settings, listener
        self._slots = asyncio.Semaphore(settings.at_a_time)
        self._next_at = 0.0
        self._full = False

    async def trim(self, images: Sequence[str]) -> None:
        """Remove the last of these images while the budget is exceeded, after an earlier pull was killed."""
        for image in reversed(images):
            if not self._disk.is_over:
                break
            await self._stored.remove(image)
            await self._disk.measure()

    async def one(self, image: str) -> ImageOutcome:
        async with self._slots:
            began = time.monotonic()
            try:
                outcome, reason = await self._pulled(image)
            finally:
                self._disk.coming.pop(image, None)
        result = ImageOutcome(self._host, image, outcome, reason, time.monotonic() - began)
        self._listener.done(result)
        return result

    async def _pulled(self, image: str) -> tuple[Outcome, str]:
        if self._full:
            return "no room", "the disk budget is used up"
        try:
            await self._with_retries(image)
            await self._disk.measure()
        except _NoRoomError:
            self._full = True
            return "no room", "it is larger than what is left of the disk budget"
        except (SandboxError, ConfigError) as exc:
            return "failed", " ".join(str(exc).split())
        if self._disk.is_over:
            self._full = True
            await self._stored.remove(image)
            await self._disk.measure()
            return "no room", "with it, the images took more than the disk budget"
        return "pulled", ""

    async def _with_retries(self, image: str) -> None:
        pause = _PAUSE_S
        for attempt in range(1, _TRIES + 1):
            await self._wait_for_turn()
            try:
                return await self._get(image)
            except SandboxError as exc:
                if attempt == _TRIES or any(word in str(exc).lower() for word in _FINAL):
                    raise
                log.info("host %s: %s is tried again: %s", self._host, image, exc)
            await asyncio.sleep(pause)
            pause *= 2
        return None

    async def _get(self, image: str) -> None:
        if not image or image.startswith(("/", "./", "../", "~")):
            await self._stored.ready(image)
            return

        def heard(done: int, size: int) -> None:
            self._disk.expect(image, done, size)
            self._listener.progress(self._host, image, done, size)

        await self._stored.pull(image, self._settings.mirror, heard)

    async def _wait_for_turn(self) -> None:
        """Begin no more pulls than the rate allows."""
        now = time.monotonic()
        due = max(self._next_at, now)
        self._next_at = due + 3600 / self._settings.an_hour
        await asyncio.sleep(due - now)
