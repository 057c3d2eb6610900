"""Policies for episodes whose environment fails: end the run, retry with growing pauses, drop small groups."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from agentrl.errors import InfraError
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class FailurePolicy:
    """A policy for episodes whose environment fails. A failed episode has no reward. So under every policy, the
    baseline of a group is the mean of its valid episodes."""

    again: int = 1
    """How many times a failed episode is played again, each time with a fresh Env."""
    wait_s: float = 0.0
    """Seconds before the second attempt. Each further attempt waits twice as long."""
    least: int = 0
    """The fewest valid episodes of a group. A group with fewer is dropped, with the reason `env_failure`, and a fresh
    task replaces the group."""
    ends_run: bool = False
    """Whether the first episode whose last attempt fails raises InfraError."""


RETRY = FailurePolicy()


async def with_retries(
    policy: FailurePolicy,
    play: Callable[[int], Awaitable[Sequence[Trajectory]]],
    again: Callable[[], None] = lambda: None,
) -> Sequence[Trajectory]:
    """Play an episode by `play(attempt)`, and repeat it after failures as the policy says. `again` is called before
    each repetition.

    An episode with seats has several trajectories, and fails if any trajectory fails. `info["restarted"]` of the last
    attempt has the errors of the earlier attempts. Raises InfraError if the policy ends the run.
    """
    wait = policy.wait_s
    trajectories, errors = await play(0), list[JSON]()
    for attempt in range(1, policy.again + 1):
        first = _failed(trajectories)
        if first is None or first.failure is None:
            break
        errors.append(first.failure.error)
        again()
        if wait:
            await asyncio.sleep(wait)
            wait *= 2
        trajectories = await play(attempt)
        for trajectory in trajectories:
            trajectory.info["restarted"] = [*errors]
    failed = _failed(trajectories)
    if policy.ends_run and failed is not None and (failure := failed.failure) is not None:
        raise InfraError(f"episode {failed.session_id} failed in {failure.boundary}: {failure.error}")
    return trajectories


def _failed(trajectories: Sequence[Trajectory]) -> Trajectory | None:
    return next((trajectory for trajectory in trajectories if trajectory.failure is not None), None)


def too_few(policy: FailurePolicy, group: Sequence[Trajectory]) -> bool:
    """Whether a group has fewer valid episodes than the policy needs."""
    return sum(trajectory.is_valid for trajectory in group) < policy.least
