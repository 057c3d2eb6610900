"""The reward of an episode: `Env.score` or a reward function, less the penalty for calls that could not be read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentrl._util.boundary import at_boundary
from agentrl.env.env import Env, runtime
from agentrl.episode.options import RewardFn
from agentrl.errors import BadCallPolicy
from agentrl.plain import number, to_json_lossy
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import Reward


async def score(
    env: Env, trajectory: Trajectory, reward: RewardFn | None, policy: BadCallPolicy | None, *, timeout: float
) -> None:
    """Write the reward and its parts into the trajectory. Raises FailedError."""
    hook: Callable[[Trajectory], Any] = reward or env.score
    with at_boundary("score", hook=hook):
        value = await runtime(env).hook(hook, trajectory, timeout=timeout)
        given = value if isinstance(value, Reward) else Reward(value)
        parts = {
            str(to_json_lossy(name)): number(part, f"part {name!r} of the reward") for name, part in given.parts.items()
        }
        trajectory.reward = None if value is None else number(given.value, "the reward")
        trajectory.reward_parts = parts
    _penalise(trajectory, policy.penalty if policy else 0.0)


def nothing_earned(trajectory: Trajectory, policy: BadCallPolicy | None) -> None:
    """Give an episode without a reward the reward 0, less the penalty."""
    trajectory.reward = 0.0
    _penalise(trajectory, policy.penalty if policy else 0.0)


def _penalise(trajectory: Trajectory, penalty: float) -> None:
    unread = sum(turn.bad_call == "structural" for turn in trajectory.turns)
    if trajectory.reward is not None and penalty and unread:
        trajectory.reward -= penalty * unread
        trajectory.reward_parts = {**trajectory.reward_parts, "bad_call_penalty": -penalty * unread}
