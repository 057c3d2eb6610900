"""An episode of a rollout, with or without seats: played in this process or by a worker, and repeated after a
failure."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from agentrl._util.boundary import FailedError, at_boundary
from agentrl.engine.base import Engine
from agentrl.env.factory import EnvFactory
from agentrl.episode.options import EpisodeHooks, EpisodeOptions, RewardFn
from agentrl.episode.phases import PhaseSlots
from agentrl.episode.run import run_episode
from agentrl.episode.seats import run_seats
from agentrl.errors import BugError
from agentrl.render.base import Renderer
from agentrl.rollout.play.failures import RETRY, FailurePolicy, with_retries
from agentrl.rollout.play.in_flight import AGAIN, note_turn
from agentrl.rollout.play.opponents import Opponents, Seating
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import SamplingParams, StopReason, Task


class LockstepProtocol(Protocol):
    """Episodes that take their turns together; see `agentrl.engine.local.lockstep`."""

    def episode(self) -> AbstractContextManager[None]: ...

    def begin_again(self) -> None: ...


class NoLockstep:
    """A lockstep without effect, for engines that have no lockstep."""

    def episode(self) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    def begin_again(self) -> None:
        pass


class RemotePlayer(Protocol):
    """Plays episodes in other processes; see `agentrl.rollout.play.remote`."""

    async def play(self, task: Task, params: SamplingParams, session_id: str) -> Trajectory:
        """Play an episode, as `play_episode` does without hooks. If the engine aborts a turn to load new weights, the
        turn continues. The worker stops the episode when the driver drops it."""
        ...


@dataclass(slots=True)
class RewardSeen:
    """Whether the episodes of a run get rewards."""

    any: bool = False
    """Whether any episode of the run got a reward. Set this attribute when a run is resumed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """The settings that all episodes of a run share."""

    envs: EnvFactory
    engine: Engine
    renderer: Renderer
    options: EpisodeOptions = field(default_factory=EpisodeOptions)
    reward: RewardFn | None = None
    concurrency: int = 128
    """The most episodes in flight at once."""
    scored: RewardSeen = field(default_factory=RewardSeen)
    opponents: Opponents = field(default_factory=Opponents)
    """The players of the other seats, in an Env with seats."""
    failures: FailurePolicy = RETRY
    """The policy for episodes whose environment fails."""
    phases: PhaseSlots | None = None
    """Limits on how many episodes reset, step and score at once."""
    slot: Callable[[], AbstractAsyncContextManager[None]] | None = None
    """A function that gives an episode a slot, as a context, in place of the limit `concurrency`."""
    workers: RemotePlayer | None = None
    """Workers that play the episodes. With workers, the Envs are not entered in this process, and the engine's lockstep
    is not used."""


async def play_episode(
    rollout: Rollout,
    task: Task,
    params: SamplingParams,
    session_id: str,
    *,
    hooks: EpisodeHooks | None = None,
) -> Trajectory:
    """Play an episode. After a failure of the environment, it is repeated as `rollout.failures` says.

    Without `hooks` nobody stops the episode: if the engine aborts a turn to load new weights, the turn continues.
    Raises BugError for a bug, ConfigError, and InfraError if a failure ends the run.
    """
    return await _play_with_retry(rollout, task, params, session_id, NoLockstep(), hooks)


async def _play_with_retry(
    rollout: Rollout,
    task: Task,
    params: SamplingParams,
    session_id: str,
    lockstep: LockstepProtocol,
    hooks: EpisodeHooks | None = None,
) -> Trajectory:
    """Play an episode. After a failure of the environment, repeat the episode under another session id."""
    if rollout.workers is not None:
        return await rollout.workers.play(task, params, session_id)
    hooks = replace(hooks or EpisodeHooks(aborted=_never, on_turn=note_turn), slots=rollout.phases)

    async def play(attempt: int) -> list[Trajectory]:
        return [await _play(rollout, task, params, _name_of(session_id, attempt), hooks)]

    (trajectory,) = await with_retries(rollout.failures, play, lockstep.begin_again)
    _mask_invalid(trajectory)
    return trajectory


def _never() -> bool:
    """`EpisodeHooks.aborted` of a host that stops no episode."""
    return False


def _name_of(session_id: str, attempt: int) -> str:
    """The session id of an attempt. The first attempt has the id `session_id`."""
    return session_id + (AGAIN if attempt == 1 else f"{AGAIN}{attempt}" if attempt else "")


def _mask_invalid(trajectory: Trajectory) -> None:
    if not trajectory.is_valid:
        trajectory.mask("env_failure" if trajectory.failure is not None else "host")


async def play_all_seats(
    rollout: Rollout,
    task: Task,
    params: SamplingParams,
    session_id: str,
    lockstep: LockstepProtocol,
    seating: Seating | None,
) -> list[Trajectory]:
    """Play an episode of an Env with or without seats. After a failure of the environment, play it again. If the last
    attempt fails, the trajectories of all seats fail and are masked."""
    if seating is None:
        return [await _play_with_retry(rollout, task, params, session_id, lockstep)]

    async def play(attempt: int) -> list[Trajectory]:
        seated = await play_seats(
            rollout.envs,
            task,
            seating,
            engine=rollout.engine,
            renderer=rollout.renderer,
            options=replace(rollout.options, sampling_params=params),
            reward=rollout.reward,
            session_id=_name_of(session_id, attempt),
            slots=rollout.phases,
        )
        return [*map(raise_bug, seated)]

    trajectories = await with_retries(rollout.failures, play, lockstep.begin_again)
    for trajectory in trajectories:
        _mask_invalid(trajectory)
    return [*trajectories]


async def _play(
    rollout: Rollout, task: Task, params: SamplingParams, session_id: str, hooks: EpisodeHooks
) -> Trajectory:
    try:
        with at_boundary("reset"):
            env = rollout.envs.make()
    except FailedError as failed:
        trajectory = Trajectory(task, session_id=session_id)
        trajectory.stop, trajectory.failure = StopReason.FAILED, failed.failure
        return raise_bug(trajectory)
    trajectory = await run_episode(
        env,
        task,
        engine=rollout.engine,
        renderer=rollout.renderer,
        options=replace(rollout.options, sampling_params=params),
        reward=rollout.reward,
        session_id=session_id,
        hooks=hooks,
    )
    return raise_bug(trajectory)


def raise_bug(trajectory: Trajectory) -> Trajectory:
    """Raises BugError if a bug ended the episode, else returns the trajectory."""
    if trajectory.failure is not None and trajectory.failure.kind == "bug":
        raise BugError(trajectory.failure, trajectory.session_id)
    return trajectory


async def play_seats(
    envs: EnvFactory,
    task: Task,
    seating: Seating,
    *,
    engine: Engine,
    renderer: Renderer,
    options: EpisodeOptions,
    reward: RewardFn | None,
    session_id: str,
    slots: PhaseSlots | None = None,
) -> list[Trajectory]:
    """Play an episode with seats. Returns the trajectories of the policy's seats, in the Env's order."""
    try:
        with at_boundary("reset"):
            env = envs.make()
    except FailedError as failed:
        return _failed(task, session_id, seating.trained, failed)
    trajectories = await run_seats(
        env,
        task,
        engine=engine,
        renderer=renderer,
        players=seating.players(renderer, options.sampling_params.get("sampling_seed", 0)),
        options=options,
        reward=reward,
        session_id=session_id,
        hooks=EpisodeHooks(aborted=_never, on_turn=partial(note_turn, session_id=session_id), slots=slots),
    )
    for trajectory in trajectories.values():
        trajectory.info["opponent"] = seating.opponent.name
    return [trajectories[seat] for seat in seating.trained]


def _failed(task: Task, session_id: str, seats: Sequence[str], failed: FailedError) -> list[Trajectory]:
    trajectories = []
    for seat in seats:
        trajectory = Trajectory(task, session_id=f"{session_id}-{seat}")
        trajectory.seat, trajectory.stop, trajectory.failure = seat, StopReason.FAILED, failed.failure
        trajectories.append(trajectory)
    return trajectories
