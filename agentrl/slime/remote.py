"""Episodes of slime's samples in worker processes: the requests that `adapt` sends, and the play in a worker."""

from __future__ import annotations

import asyncio
import atexit
import sys
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any
from uuid import uuid4

from agentrl.episode.shared import loop_resources
from agentrl.errors import ConfigError
from agentrl.image import share_images
from agentrl.models.vision import Vision, load_vision
from agentrl.slime.config import is_loopback
from agentrl.slime.fatal import failed_episode
from agentrl.slime.host import session_of
from agentrl.slime.playing import PlayedSample, SampleRequest, play_sample
from agentrl.slime.resumption import sample_name
from agentrl.slime.sample import METADATA_KEY
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import JSON
from agentrl.workers import JobOrder, WorkerAnswer, WorkerLostError, WorkerPool
from agentrl.workers.base import Transport, encoded
from agentrl.workers.threads import LoopThread

_LOOK_S = 0.02
"""Seconds between two checks of slime's abort flag, which sends no event."""
_HOMES = 100_000
"""The most aborted episodes whose worker is remembered."""


@dataclass(frozen=True, slots=True)
class SentSample:
    """The attributes of a Sample that a worker needs in addition to the task."""

    session_id: str | None
    index: int | None
    metadata: Mapping[str, JSON]
    """The entry "agentrl" of the sample's metadata."""
    multimodal_inputs: Mapping[str, bool]
    """The kinds of media in the prompt. The task has the media themselves."""
    tokens: Sequence[int]
    response_length: int
    loss_mask: Sequence[int] | None

    @classmethod
    def of(cls, sample: Any) -> SentSample:
        metadata = {METADATA_KEY: sample.metadata[METADATA_KEY]} if METADATA_KEY in sample.metadata else {}
        media = getattr(sample, "multimodal_inputs", None) or {}
        return cls(
            session_of(sample) or None,
            getattr(sample, "index", None),
            metadata,
            {kind: True for kind, value in media.items() if value is not None},
            list(sample.tokens),
            sample.response_length,
            None if sample.loss_mask is None else list(sample.loss_mask),
        )


@dataclass(frozen=True, slots=True)
class _SentEpisode:
    """The result that a worker sends for an episode."""

    trajectory: Trajectory
    about: Mapping[str, JSON]
    teacher_log_probs: Sequence[Sequence[float]]
    responses: Sequence[str]
    """For each segment, the text of the response."""


@asynccontextmanager
async def open_job(config: None) -> AsyncIterator[SampleJob]:
    """Open the job of a worker. Each request has its own configuration."""
    try:
        yield SampleJob()
    finally:
        await loop_resources().close()


class SampleJob:
    """Plays the episodes of samples in a worker."""

    def __init__(self) -> None:
        self._latest: Callable[[], bool] = lambda: False
        """Returns the abort flag of the rollout with the latest request."""

    async def play(self, request: SampleRequest, aborted: Callable[[], bool]) -> _SentEpisode:
        """Play the episode of a request. Raises ConfigError."""
        self._latest = aborted
        share_images(request.task.prompt)
        flag = aborted if request.in_slime else None
        episode = await play_sample(request, flag, self._stopped if request.in_slime else None)
        responses = [episode.decode(segment.response) for segment in episode.trajectory.segments]
        return _SentEpisode(episode.trajectory, episode.about, episode.teacher_log_probs, responses)

    def _stopped(self) -> bool:
        return self._latest()

    def status(self) -> None:
        return None


@dataclass(slots=True)
class SampleWorkers:
    """The workers of this process. slime's rollout and its evaluation use these workers from different event loops."""

    size: int
    thread: LoopThread = field(default_factory=lambda: LoopThread("agentrl-workers"))
    pool: WorkerPool | None = None
    starting: asyncio.Task[WorkerPool] | None = None
    _aborted: Callable[[], bool] | None = None
    _was_aborted: bool = False
    _playing: int = 0
    _watching: asyncio.Task[None] | None = None
    _homes: OrderedDict[str, str] = field(default_factory=OrderedDict)

    async def play(self, request: SampleRequest, aborted: Callable[[], bool] | None) -> PlayedSample:
        """Play the episode of a sample in a worker, as `play_sample` does. If two workers die during the episode, it
        fails.

        Raises ConfigError.
        """
        refuse_loopback(request.config.engine_url(request.flags), 0 if self.pool is None else self.pool.started)
        sent = replace(request, sample=SentSample.of(request.sample), flags=replace(request.flags, eval_datasets=()))
        session_id = session_of(request.sample) or uuid4().hex
        message = encoded(sent, f"sample {sample_name(request.sample) or session_id}")
        name = "" if request.evaluation else sample_name(request.sample)
        try:
            answer = await self.thread.run(self._play(message, name, aborted))
        except WorkerLostError as exc:
            failed = failed_episode(request.task, session_id, exc, "run")
            return PlayedSample(failed, {}, (), lambda ids: "", None)
        episode: _SentEpisode = answer.result
        share_images(episode.trajectory.messages)
        share_images(episode.trajectory.task.prompt)
        if answer.lost:
            episode.trajectory.info["workers_lost"] = list(answer.lost)
        texts = {
            tuple(segment.response): text
            for segment, text in zip(episode.trajectory.segments, episode.responses, strict=True)
        }
        vision = None
        if any(segment.media for segment in episode.trajectory.segments):
            vision = await asyncio.to_thread(_vision, request.config.model_path(request.flags))
        return PlayedSample(
            episode.trajectory, episode.about, episode.teacher_log_probs, lambda ids: texts[tuple(ids)], vision
        )

    async def _play(self, request: bytes, name: str, aborted: Callable[[], bool] | None) -> WorkerAnswer:
        """Play the episode in the pool. Runs in the thread of the pool."""
        pool = await self.started()
        self._aborted = aborted
        self._look(pool)
        self._playing += 1
        if aborted is not None and (self._watching is None or self._watching.done()):
            self._watching = asyncio.create_task(self._watch(pool))
        try:
            answer = await pool.play(request, home=self._homes.pop(name, ""))
        finally:
            self._playing -= 1
        if "resume" in answer.result.about and name:
            self._homes[name] = answer.worker
            while len(self._homes) > _HOMES:
                self._homes.popitem(last=False)
        return answer

    async def started(self) -> WorkerPool:
        """The pool of workers. All episodes wait for the same start. If the start fails, each episode raises its
        ConfigError."""
        self.starting = self.starting or asyncio.create_task(self._start())
        return await asyncio.shield(self.starting)

    async def _start(self) -> WorkerPool:
        pool = WorkerPool(transport=_transport(), order=JobOrder(f"{__name__}:open_job", None), size=self.size)
        self.pool = await pool.__aenter__()
        return self.pool

    async def _watch(self, pool: WorkerPool) -> None:
        """Tell the workers when slime aborts its episodes."""
        while self._playing:
            self._look(pool)
            await asyncio.sleep(_LOOK_S)

    def _look(self, pool: WorkerPool) -> None:
        is_aborted = self._aborted is not None and self._aborted()
        if is_aborted and not self._was_aborted:
            pool.abort()
        elif self._was_aborted and not is_aborted:
            pool.next_epoch()
        self._was_aborted = is_aborted

    def close(self) -> None:
        """End the workers, and wait for their end."""
        if self.starting is not None:
            self.thread.run_here(self._closed(self.starting))
        self.pool = self.starting = self._watching = None
        self.thread.stop()

    async def _closed(self, starting: asyncio.Task[WorkerPool]) -> None:
        starting.cancel()  # a starting pool closes itself
        await asyncio.wait({starting})
        if self.pool is not None:
            await self.pool.close()


def _ray() -> Any:
    """Ray's module if this process is part of a Ray cluster, else None."""
    ray = sys.modules.get("ray")
    return ray if ray is not None and ray.is_initialized() else None


def _transport() -> Transport:
    """Ray actors if this process is part of a Ray cluster, else child processes."""
    if _ray() is not None:
        from agentrl.workers.actors import ActorTransport

        return ActorTransport()
    from agentrl.workers.pipes import PipeTransport

    return PipeTransport()


@cache
def _vision(model: str) -> Vision | None:
    return load_vision(model)


@cache
def refuse_loopback(url: str, started: int) -> None:
    """Raises ConfigError if workers on other nodes could not reach the engine at this URL.

    A cluster may grow, so the URL is checked again when the number `started` of workers has grown.
    """
    ray = _ray()
    if ray is not None and is_loopback(url) and sum(node["Alive"] for node in ray.nodes()) > 1:
        raise ConfigError(f"the engine {url} is out of reach for workers on other nodes; use this node's address")


_opening = threading.Lock()


def sample_workers(size: int) -> SampleWorkers:
    """The workers of this process, which start with the first episode."""
    with _opening:
        return _workers(size)


@cache
def _workers(size: int) -> SampleWorkers:
    workers = SampleWorkers(size)
    atexit.register(workers.close)
    return workers
