"""An episode with seats under slime. Each seat of the policy becomes a sample with its own reward."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Any

from agentrl._util.concurrency import is_cancelled
from agentrl.env.env import Env
from agentrl.env.factory import EnvFactory
from agentrl.episode.seats import run_seats
from agentrl.errors import Boundary, ConfigError
from agentrl.rollout.play.opponents import Seating, open_fixed
from agentrl.slime.config import SlimeConfig, fan_out_problems
from agentrl.slime.fatal import failed_episode
from agentrl.slime.host import HostArgs
from agentrl.slime.sample import siblings_of
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import StopReason, Task

NOT_IN_WORKERS = "workers play no Env with seats, as {} is"


def seating_of(config: SlimeConfig, env: type[Env], sample: Any) -> Seating:
    """The opponent and the seats of a sample's group. The opponents take turns from group to group. Raises
    ConfigError."""
    turn = getattr(sample, "group_index", None)
    turn = getattr(sample, "index", None) if turn is None else turn  # slime numbers no groups in evaluation
    return open_fixed(config.opponents).seating(env.seats, turn or 0)


def check_seats(flags: HostArgs, env: type[Env], sample: Any, *, takes_lists: bool) -> None:
    """Raises ConfigError if the flags forbid several samples for an episode."""
    problems = fan_out_problems(flags, takes_lists=takes_lists)
    if flags.use_rollout_routing_replay:
        problems.append("remove --use-rollout-routing-replay, which follows one conversation")
    if flags.has_reward_model(sample):
        problems.append("remove the reward model, which would score each seat alone: use Env.score or `reward`")
    if problems:
        raise ConfigError(f"{env.__name__} has seats, and each is a sample: {'; '.join(problems)}")


async def play_seats(
    opening: Awaitable[EnvFactory], task: Task, seating: Seating, seed: int, **arguments: Any
) -> dict[str, Trajectory]:
    """Play an episode. Returns the trajectories of the policy's seats, in the Env's order. `opening` is awaited for the
    Envs, whose `share` has then returned. `arguments` are passed to `run_seats`."""
    boundary: Boundary = "share"
    try:
        envs = await opening
        boundary = "reset"
        env = envs.make()
        boundary = "engine"
        trajectories = await run_seats(env, task, players=seating.players(arguments["renderer"], seed), **arguments)
    except ConfigError:
        raise
    except (Exception, asyncio.CancelledError) as exc:  # slime's boundary: an error would end its whole rollout
        if isinstance(exc, asyncio.CancelledError) and is_cancelled():
            raise
        trajectories = {
            seat: failed_episode(task, f"{arguments['session_id']}-{seat}", exc, boundary) for seat in seating.trained
        }
        for seat, trajectory in trajectories.items():
            trajectory.seat = seat
    for trajectory in trajectories.values():
        trajectory.info["opponent"] = seating.opponent.name
    return {seat: trajectories[seat] for seat in seating.trained}


def samples_of(sample: Any, seated: Mapping[str, Trajectory]) -> list[tuple[Any, Trajectory]]:
    """A sample for each seat, all with the same rollout_id. The last is `sample` itself. An aborted episode is a single
    sample, since slime does not send lists again."""
    trajectories = [*seated.values()]
    if len(trajectories) == 1 or trajectories[0].stop is StopReason.ABORTED:
        return [(sample, trajectories[0])]
    return list(zip(siblings_of(sample, len(trajectories)), trajectories, strict=True))
