"""The order of rollouts and updates. In this module they take turns: each rollout has the newest weights.
`async_order.py` has the order for `staleness`."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from agentrl.train.handover import HandOver
from agentrl.train.report import AsyncReport
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import JSON

Groups: TypeAlias = list[list[Trajectory]]
Collect: TypeAlias = Callable[[int], Awaitable[Groups]]
Update: TypeAlias = Callable[[Groups, int], dict[str, Any]]
PlayEvaluation: TypeAlias = Callable[[], Awaitable[Mapping[str, JSON]]]
"""A function that plays the held-out tasks, and returns metrics."""


@dataclass(slots=True)
class Played:
    """The groups that a step has played, and the seconds of the step's parts."""

    step: int
    groups: Groups
    hand_over_s: float = 0.0
    rollout_s: float = 0.0
    train_s: float = 0.0
    async_report: AsyncReport | None = None
    """The times and token ages of a step with `staleness`. None if rollouts and updates take turns."""

    @property
    def trajectories(self) -> list[Trajectory]:
        return [trajectory for group in self.groups for trajectory in group]


class StepOrder(Protocol):
    """Plays the rollouts of a run, and lets the learner learn from them. Each step calls `rollout`, then `learn`."""

    async def rollout(self, step: int) -> Played:
        """Get the groups that this step learns from."""
        ...

    async def learn(self, rollout: Played, update: Update) -> dict[str, Any]:
        """Update the weights, and return the metrics of the update."""
        ...

    async def aside(self, function: Callable[[], None]) -> None:
        """Call a slow function between two steps, such as the writer of a checkpoint."""
        ...

    def paused(self) -> AbstractAsyncContextManager[None]:
        """While the context is open, no rollout is played, so that the engine is free for an evaluation."""
        ...

    async def evaluate(self, step: int, evaluate: PlayEvaluation | None, *, last: bool) -> Mapping[str, JSON]:
        """Called after each step. `evaluate` plays the held-out tasks; None if no evaluation is due. Returns the
        metrics of a finished evaluation, else nothing."""
        ...

    async def stop(self) -> None:
        """End the running rollouts. Safe to call twice."""
        ...


class InTurn:
    """Plays a rollout, then updates, then plays the next rollout. The engine may share the learner's weights and
    device."""

    def __init__(self, handover: HandOver, collect: Collect) -> None:
        self._handover, self._collect = handover, collect
        self._rollout_end = 0.0

    async def rollout(self, step: int) -> Played:
        began_hand_over = time.monotonic()
        await self._handover.give()
        began = time.monotonic()
        groups = await self._collect(step)
        self._rollout_end = time.monotonic()
        await self._handover.rest()
        return Played(step, groups, hand_over_s=began - began_hand_over, rollout_s=self._rollout_end - began)

    async def learn(self, rollout: Played, update: Update) -> dict[str, Any]:
        metrics = update(rollout.groups, rollout.step)
        rollout.train_s = time.monotonic() - self._rollout_end
        return metrics

    async def aside(self, function: Callable[[], None]) -> None:
        function()

    def paused(self) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    async def evaluate(self, step: int, evaluate: PlayEvaluation | None, *, last: bool) -> Mapping[str, JSON]:
        return {} if evaluate is None else await evaluate()

    async def stop(self) -> None:
        pass
