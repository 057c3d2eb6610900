"""Episodes of a rollout in worker processes: the requests of the driver (the main process), and the play in a
worker."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Self, Unpack

from agentrl.engine.base import Engine, EngineWrapper, RequestFields, ask
from agentrl.engine.table import EngineParts, open_engine
from agentrl.env.factory import EnvFactory
from agentrl.episode.config import EpisodeConfig, load_reward
from agentrl.episode.options import EpisodeHooks, EpisodeOptions
from agentrl.episode.phases import Phase, PhaseSlots
from agentrl.errors import BugError, ConfigError, EngineLostError, Failure
from agentrl.image import share_images
from agentrl.render import load_renderer
from agentrl.rollout.play.episodes import Rollout, play_episode
from agentrl.rollout.play.failures import RETRY, FailurePolicy
from agentrl.rollout.play.in_flight import flying, in_flight, note_remote, note_turn, take_started
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import JSON, Generation, SamplingParams, StopReason, Task
from agentrl.workers import JobOrder, Transport, WorkerAnswer, WorkerLostError, WorkerPool
from agentrl.workers.base import encoded
from agentrl.workers.pipes import PipeTransport

_STATUS_S = 2.0
"""Seconds between two requests for the state of the workers' episodes."""
SERVED = "served"
"""The value of `EpisodeOrder.engine` for the driver's engine, which workers reach over HTTP."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeOrder:
    """The settings with which a worker plays episodes. The Env is a path, and all other settings are values."""

    env: str
    env_config: Mapping[str, Any]
    options: EpisodeOptions
    tokenizer: Any
    vision: Any = None
    """The image side of the model. None for a model without images."""
    engine: str = SERVED
    engine_config: Mapping[str, Any] = field(default_factory=dict)
    reward: str | None = None
    failures: FailurePolicy = RETRY
    at_once: Mapping[Phase, int] = field(default_factory=dict)
    """Phase -> the most episodes in the phase at once, in all workers together. Each worker may have at least one
    episode in it."""

    @classmethod
    def of(cls, config: EpisodeConfig, tokenizer: Any, vision: Any = None) -> Self:
        """The settings for the workers of a run. These workers use the driver's engine."""
        assert config.env is not None
        return cls(
            env=config.env,
            env_config=config.env_config,
            options=config.options(),
            tokenizer=tokenizer,
            vision=vision,
            reward=config.reward,
        )


@dataclass(frozen=True, slots=True)
class _EpisodeRequest:
    task: Task
    params: SamplingParams
    session_id: str


@dataclass(frozen=True, slots=True)
class _Bug:
    """The content of a BugError. The exception itself cannot be sent between processes."""

    failure: Failure
    session_id: str


@asynccontextmanager
async def open_job(order: EpisodeOrder) -> AsyncIterator[EpisodeJob]:
    """Open the job of a worker. Raises ConfigError if the Env, the reward or the engine cannot be opened in the
    worker."""
    envs, reward = EnvFactory(order.env, order.env_config), load_reward(order.reward)
    renderer = order.options.renderer(load_renderer(order.tokenizer, vision=order.vision))
    engine = open_engine(order.engine, EngineParts(order.tokenizer, renderer, _no_model), order.engine_config)
    try:
        async with envs:
            rollout = Rollout(
                envs=envs,
                engine=engine,
                renderer=renderer,
                options=order.options,
                reward=reward,
                failures=order.failures,
                phases=PhaseSlots(order.at_once) if order.at_once else None,
            )
            yield EpisodeJob(rollout)
    finally:
        await engine.close()


def _no_model() -> Any:
    raise ConfigError("a worker has no weights: with workers, the engine is a server")


@dataclass(frozen=True, slots=True)
class EpisodeJob:
    """Plays single episodes of a rollout in a worker."""

    rollout: Rollout

    async def play(self, request: _EpisodeRequest, aborted: Callable[[], bool]) -> Trajectory | _Bug:
        """Play an episode. Returns its trajectory, or the bug that ended the episode."""
        share_images(request.task.prompt)
        try:
            with flying(request.session_id, request.task.id):
                hooks = EpisodeHooks(aborted=aborted, on_turn=note_turn)
                return await play_episode(self.rollout, request.task, request.params, request.session_id, hooks=hooks)
        except BugError as exc:
            return _Bug(exc.failure, exc.session_id)
        finally:
            take_started(request.session_id)

    def status(self) -> Mapping[str, Mapping[str, JSON]]:
        return {session_id: flight.to_json() for session_id, flight in in_flight().items()}


@dataclass(slots=True)
class EpisodeWorkers:
    """The driver's side of episodes in workers. `play` does the same as `play_episode`, in a worker."""

    pool: WorkerPool
    ends_run: bool = False
    """Whether an episode during which two workers died raises WorkerLostError."""
    _playing: int = 0
    _watcher: asyncio.Task[None] | None = field(default=None, repr=False)

    async def play(self, task: Task, params: SamplingParams, session_id: str) -> Trajectory:
        """Play an episode in a worker. If two workers die during the episode, it counts as failed.

        Raises BugError for a bug, ConfigError for a task that cannot be sent, and the errors that end the workers.
        """
        request = encoded(_EpisodeRequest(task, params, session_id), f"task {task.id or session_id}")
        with self._counted():
            try:
                answer = await self.pool.play(request)
            except WorkerLostError as exc:
                if self.ends_run:
                    raise
                trajectory = Trajectory(task, session_id=session_id)
                trajectory.stop, trajectory.failure = StopReason.FAILED, Failure.of(exc, "run")
                return trajectory
        return _settled(answer)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Count an episode in flight while the context is open. The workers are watched while any episode is in
        flight."""
        self._playing += 1
        if self._watcher is None:
            self._watcher = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            self._playing -= 1
            if not self._playing:
                self._watcher.cancel()
                self._watcher = None

    async def _watch(self) -> None:
        """Record the state of the workers' episodes from time to time, for observers of the run."""
        while True:
            await asyncio.sleep(_STATUS_S)
            for status in await self.pool.status():
                note_remote(status or {})


def _settled(answer: WorkerAnswer) -> Trajectory:
    trajectory = answer.result
    if isinstance(trajectory, _Bug):
        raise BugError(trajectory.failure, trajectory.session_id)
    assert isinstance(trajectory, Trajectory)
    share_images(trajectory.messages)
    share_images(trajectory.task.prompt)
    if answer.lost:
        trajectory.info["workers_lost"] = list(answer.lost)
    return trajectory


@asynccontextmanager
async def with_workers(
    count: int, rollout: Rollout, order: EpisodeOrder, *, transport: Callable[[], Transport] = PipeTransport
) -> AsyncIterator[Rollout]:
    """The rollout with `count` workers for its episodes. If `count` is 0, the rollout's Envs are entered in this
    process.

    An engine that only the driver can open is served to the workers over HTTP, on 127.0.0.1. Raises ConfigError for a
    rollout that cannot run in a worker.
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
        shares = {phase: bound // count for phase, bound in order.at_once.items()}
        job = JobOrder(f"{__name__}:open_job", replace(order, at_once=shares))
        pool = await stack.enter_async_context(WorkerPool(transport=transport(), order=job, size=count))
        pools.append(pool)
        yield replace(rollout, workers=EpisodeWorkers(pool, ends_run=order.failures.ends_run))


def _opens_itself(order: EpisodeOrder) -> bool:
    """Whether each worker can open the engine: a client of a server, or a script."""
    return order.engine == "scripted" or (order.engine == "sglang" and "url" in order.engine_config)


@asynccontextmanager
async def _served(order: EpisodeOrder, engine: Engine, pools: list[WorkerPool]) -> AsyncIterator[EpisodeOrder]:
    """While the context is open, the engine is served over HTTP. Yields the order with a client of this engine."""
    from agentrl.engine.sglang.server import running_server  # aiohttp is imported only on use

    def lost(exc: EngineLostError) -> None:
        for pool in pools:
            pool.fail(exc)

    key = secrets.token_urlsafe()
    async with running_server(_ServedEngine(engine, lost), api_key=key) as url:
        yield replace(order, engine="sglang", engine_config={"url": url, "api_key": key})


@dataclass(frozen=True, slots=True, eq=False)
class _ServedEngine(EngineWrapper):
    """The driver's engine, reached over HTTP. If the engine is lost, the run ends: requests are not repeated."""

    lost: Callable[[EngineLostError], None]

    async def generate(
        self, input_ids: Sequence[int], sampling_params: SamplingParams, **request: Unpack[RequestFields]
    ) -> Generation:
        try:
            return await ask(self.engine, input_ids, sampling_params, request)
        except EngineLostError as exc:
            self.lost(exc)
            raise
