"""Episodes of a rollout in workers: what the driver sends, and what a worker does with it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Self

from agentrl.engine.base import Engine, EngineWrapper
from agentrl.engine.table import EngineParts, open_engine
from agentrl.env.factory import EnvFactory
from agentrl.episode.config import EpisodeConfig, load_reward
from agentrl.episode.options import EpisodeOptions
from agentrl.errors import ConfigError, EngineLostError, Failure
from agentrl.render import load_renderer
from agentrl.rollout.groups import BugError, Rollout, play_episode
from agentrl.rollout.in_flight import flying, in_flight, note_remote, take_started
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import JSON, Generation, SamplingParams, StopReason, Task
from agentrl.workers import JobOrder, WorkerAnswer, WorkerLostError, WorkerPool
from agentrl.workers.base import encoded
from agentrl.workers.pipes import PipeTransport

_STATUS_S = 2.0
"""Seconds between two questions what the episodes of the workers are doing."""
SERVED = "served"
"""In `EpisodeOrder.engine`: the driver's engine, over HTTP."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeOrder:
    """What a worker needs to play the episodes of a rollout: the Env by its path, everything else by value."""

    env: str
    env_config: Mapping[str, Any]
    options: EpisodeOptions
    tokenizer: Any
    engine: str = SERVED
    engine_config: Mapping[str, Any] = field(default_factory=dict)
    reward: str | None = None

    @classmethod
    def of(cls, config: EpisodeConfig, tokenizer: Any) -> Self:
        """What the workers of a run need, which has an engine of its own."""
        assert config.env is not None
        options = config.options()
        return cls(
            env=config.env, env_config=config.env_config, options=options, tokenizer=tokenizer, reward=config.reward
        )


@dataclass(frozen=True, slots=True)
class _EpisodeRequest:
    task: Task
    params: SamplingParams
    session_id: str


@dataclass(frozen=True, slots=True)
class _Bug:
    """What a BugError holds, which itself cannot be sent."""

    failure: Failure
    session_id: str


@asynccontextmanager
async def open_job(order: EpisodeOrder) -> AsyncIterator[EpisodeJob]:
    """The job of a worker. Raises ConfigError for an Env, a reward or an engine that cannot be had here."""
    envs, reward = EnvFactory(order.env, order.env_config), load_reward(order.reward)
    renderer = order.options.renderer(load_renderer(order.tokenizer))
    engine = open_engine(order.engine, EngineParts(order.tokenizer, renderer, _no_model), order.engine_config)
    try:
        async with envs:
            yield EpisodeJob(Rollout(envs=envs, engine=engine, renderer=renderer, options=order.options, reward=reward))
    finally:
        await engine.close()


def _no_model() -> Any:
    raise ConfigError("a worker has no weights: with workers, the engine is a server")


@dataclass(frozen=True, slots=True)
class EpisodeJob:
    """Plays single episodes of a rollout in a worker."""

    rollout: Rollout

    async def play(self, request: _EpisodeRequest, aborted: Callable[[], bool]) -> Trajectory | _Bug:
        """The trajectory, or the bug that ended it."""
        try:
            with flying(request.session_id, request.task.id):
                return await play_episode(self.rollout, request.task, request.params, request.session_id)
        except BugError as exc:
            return _Bug(exc.failure, exc.session_id)
        finally:
            take_started(request.session_id)

    def status(self) -> Mapping[str, Mapping[str, JSON]]:
        return {session_id: flight.to_json() for session_id, flight in in_flight().items()}


@dataclass(slots=True)
class EpisodeWorkers:
    """The driver's side: `play` is `play_episode` in a worker."""

    pool: WorkerPool
    _playing: int = 0
    _watcher: asyncio.Task[None] | None = field(default=None, repr=False)

    async def play(self, task: Task, params: SamplingParams, session_id: str) -> Trajectory:
        """One episode. If two workers end while they play it, it counts as failed.

        Raises BugError for a bug, ConfigError for a task that cannot be sent, and what ended the workers.
        """
        request = encoded(_EpisodeRequest(task, params, session_id), f"task {task.id or session_id}")
        self._playing += 1
        if self._watcher is None:
            self._watcher = asyncio.create_task(self._watch())
        try:
            return _told(await self.pool.play(request))
        except WorkerLostError as exc:
            trajectory = Trajectory(task, session_id=session_id)
            trajectory.stop, trajectory.failure = StopReason.FAILED, Failure.of(exc, "run")
            return trajectory
        finally:
            self._playing -= 1
            if not self._playing and self._watcher is not None:
                self._watcher.cancel()
                self._watcher = None

    async def _watch(self) -> None:
        """Note now and then what the episodes do, for those who look at the run."""
        while True:
            await asyncio.sleep(_STATUS_S)
            for status in await self.pool.status():
                note_remote(status or {})


def _told(answer: WorkerAnswer) -> Trajectory:
    found = answer.result
    if isinstance(found, _Bug):
        raise BugError(found.failure, found.session_id)
    assert isinstance(found, Trajectory)
    if answer.lost:
        found.info["workers_lost"] = list(answer.lost)
    return found


@asynccontextmanager
async def with_workers(count: int, rollout: Rollout, order: EpisodeOrder) -> AsyncIterator[Rollout]:
    """The rollout with `count` workers, which play its episodes. With none, its Envs are entered here instead.

    An engine that only the driver can have is served to the workers over HTTP, on this machine's loopback. Raises
    ConfigError for what cannot be had in a worker.
    """
    if not count:
        async with rollout.envs:
            yield rollout
        return
    if rollout.envs.cls.seats:
        raise ConfigError(f"workers play no Env with seats, as {rollout.envs.cls.__name__} is; write workers: 0")
    async with AsyncExitStack() as stack:
        pools: list[WorkerPool] = []
        if not _opens_itself(order):
            order = await stack.enter_async_context(_served(order, rollout.engine, pools))
        job = JobOrder(f"{__name__}:open_job", order)
        pool = await stack.enter_async_context(WorkerPool(transport=PipeTransport(), order=job, size=count))
        pools.append(pool)
        yield replace(rollout, workers=EpisodeWorkers(pool))


def _opens_itself(order: EpisodeOrder) -> bool:
    """Whether each worker can open the engine: a client of a server, or a script."""
    return order.engine == "scripted" or (order.engine == "sglang" and "url" in order.engine_config)


@asynccontextmanager
async def _served(order: EpisodeOrder, engine: Engine, pools: list[WorkerPool]) -> AsyncIterator[EpisodeOrder]:
    """The order with a client of this engine, which is served meanwhile."""
    from agentrl.engine.sglang.server import running_server  # aiohttp is imported only if it is used

    def lost(exc: EngineLostError) -> None:
        for pool in pools:
            pool.fail(exc)

    key = secrets.token_urlsafe()
    async with running_server(_ServedEngine(engine, lost), api_key=key) as url:
        yield replace(order, engine="sglang", engine_config={"url": url, "api_key": key})


@dataclass(frozen=True, slots=True, eq=False)
class _ServedEngine(EngineWrapper):
    """The driver's engine. Its loss ends the run: a client that only sees HTTP would repeat its requests."""

    lost: Callable[[EngineLostError], None]

    async def generate(
        self, input_ids: Sequence[int], sampling_params: SamplingParams, *, session_id: str = "", rid: str = ""
    ) -> Generation:
        try:
            return await self.engine.generate(input_ids, sampling_params, session_id=session_id, rid=rid)
        except EngineLostError as exc:
            self.lost(exc)
            raise
