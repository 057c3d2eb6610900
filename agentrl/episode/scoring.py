"""The reward of an episode: `Env.score` or a reward function, less the penalty for unreadable calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from agentrl._util.boundary import at_boundary
from agentrl.env.env import Env, runtime
from agentrl.episode.options import RewardFn
from agentrl.errors import BadCallPolicy
from agentrl.plain import number, to_json_lossy
from agentrl.trajectory.trajectory import SIDE, SUB_AGENT, Trajectory, role_of
from agentrl.types import Reward, Task


def is_relative(reward: object) -> bool:
    """Whether a reward function only compares the episodes of a group. If so, `Env.score` also scores each episode."""
    return bool(getattr(reward, "relative", False))


def check_of(reward: object) -> Callable[[Task], None] | None:
    """The function with which a reward function checks each task before a run, such as a check of the labels; None
    without a check."""
    check = getattr(reward, "check_task", None)
    return check if callable(check) else None


async def score(
    env: Env, trajectory: Trajectory, reward: RewardFn | None, policy: BadCallPolicy | None, *, timeout: float
) -> None:
    """Write the reward and its parts into the trajectory. Raises FailedError."""
    hook: Callable[[Trajectory], Any] = env.score if reward is None or is_relative(reward) else reward
    with at_boundary("score", hook=hook):
        value = await runtime(env).hook(hook, trajectory, timeout=timeout)
        if value is None:
            trajectory.reward, trajectory.reward_parts, trajectory.branch_rewards = None, {}, {}
        else:
            give(trajectory, value)
    _penalise(trajectory, policy.penalty if policy else 0.0)


def give(trajectory: Trajectory, value: float | Reward) -> None:
    """Write a reward, its parts and the rewards of branches into the trajectory. Raises ValueError for a value that is
    no number, for unknown branches, and for branches without a reward."""
    grade = value if isinstance(value, Reward) else Reward(value)
    parts = {
        str(to_json_lossy(name)): number(part, f"part {name!r} of the reward") for name, part in grade.parts.items()
    }
    branches = {str(name): number(reward, f"the reward of branch {name!r}") for name, reward in grade.branches.items()}
    _check_branches(branches, trajectory)
    trajectory.reward = number(grade.value, "the reward")
    trajectory.reward_parts, trajectory.branch_rewards = parts, branches


def _check_branches(rewards: Mapping[str, float], trajectory: Trajectory) -> None:
    """Raises ValueError for unknown and missing branches. The roles SIDE and SUB_AGENT may be missing in the rewards or
    in the session, because the agent's program does not name them."""
    branches = trajectory.branches
    roles = {SIDE, SUB_AGENT, *map(role_of, branches)}
    if unknown := [name for name in rewards if name not in branches and name not in roles]:
        raise ValueError(
            f"score gave branch {unknown[0]!r} a reward, and the session has no such branch; its branches are "
            f"{', '.join(branches) or 'none: name them in the header X-Agentrl-Branch'}"
        )
    missing = [name for name in branches if name not in rewards and role_of(name) not in (*rewards, SIDE, SUB_AGENT)]
    if rewards and missing:
        raise ValueError(f"score gave branch {missing[0]!r} no reward; add it to Reward(..., branches=...)")


def nothing_earned(trajectory: Trajectory, policy: BadCallPolicy | None) -> None:
    """Set the reward to 0 less the penalty, for an episode that was not scored."""
    trajectory.reward = 0.0
    _penalise(trajectory, policy.penalty if policy else 0.0)


def _penalise(trajectory: Trajectory, penalty: float) -> None:
    """Subtract the penalty for each turn with an unreadable call from the reward, and from the reward of the turn's
    branch."""
    unread = dict.fromkeys(("", *trajectory.branch_rewards), 0)
    for segment in trajectory.segments:
        unread[trajectory.paid_as(segment)] += sum(turn.bad_call == "structural" for turn in segment.turns)
    lost = penalty * sum(unread.values())
    if trajectory.reward is not None and lost:
        trajectory.reward -= lost
        trajectory.reward_parts = {**trajectory.reward_parts, "bad_call_penalty": -lost}
        rewards = trajectory.branch_rewards.items()
        trajectory.branch_rewards = {name: reward - penalty * unread[name] for name, reward in rewards}
