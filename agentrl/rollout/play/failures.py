"""Policies for an episode with a failed environment: fail fast, retry with backoff, smallest group."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from agentrl.errors import InfraError
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class FailurePolicy:
    """A failed episode has no reward. So under every policy a group's baseline is the mean of its valid episodes."""

    again: int = 1
    """How often the episode is played once more, each time with a fresh Env."""
    wait_s: float = 0.0
    """Seconds before the second attempt. They double each time."""
    least: int = 0
    """A group with fewer valid episodes is dropped as `env_failure`, and a fresh task takes its place."""
    ends_run: bool = False
    """Raise InfraError for the first episode whose last attempt fails."""


RETRY = FailurePolicy()
FAIL_FAST = FailurePolicy(again=0, ends_run=True)


def smallest_group(least: int, *, again: int = 1, wait_s: float = 0.0) -> FailurePolicy:
    """Train groups with at least `least` valid episodes, and drop the other groups."""
    return FailurePolicy(again=again, wait_s=wait_s, least=least)


async def with_retries(
    policy: FailurePolicy,
    play: Callable[[int], Awaitable[Sequence[Trajectory]]],
    again: Callable[[], None] = lambda: None,
) -> Sequence[Trajectory]:
    """Play an episode by `play(attempt)`, with further attempts by the policy. `again` is called before each further
    attempt.

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
    """Whether a group has too few valid episodes."""
    return sum(trajectory.is_valid for trajectory in group) < policy.least
