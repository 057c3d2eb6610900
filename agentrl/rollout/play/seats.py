"""Episodes with seats in a rollout: the player of each seat, and the trajectories of the trained seats."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from agentrl._util.boundary import FailedError, at_boundary
from agentrl.engine.base import Engine
from agentrl.env.factory import EnvFactory
from agentrl.episode.options import EpisodeHooks, EpisodeOptions, RewardFn
from agentrl.episode.phases import PhaseSlots
from agentrl.episode.seats import run_seats
from agentrl.render.base import Renderer
from agentrl.rollout.play.in_flight import note_turn
from agentrl.rollout.play.opponents import Seating
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import StopReason, Task


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
    """Play an episode with seats. Return the trajectories of the policy's seats, in the Env's order."""
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
        hooks=EpisodeHooks(on_turn=partial(note_turn, session_id=session_id), slots=slots),
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
