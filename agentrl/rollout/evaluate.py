"""What a set of episodes came to; and evaluation, greedy episodes over tasks."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from agentrl.rollout.groups import Rollout, is_valid, run_groups
from agentrl.trajectory import Ledger, Trajectory, total_ledger
from agentrl.types import Task


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What a set of episodes came to. Episodes that the environment failed count in `failed` and `stops` alone."""

    episodes: int
    failed: int
    success: float
    """Mean reward."""
    reward_std: float
    turns_mean: float
    tool_call_rate: float
    """Share of the episodes in which the model called a tool, one that there is, at all."""
    episodes_with_tools: int
    parse_error_rate: float
    """Share of the turns with a tool call that could not be read, names no tool or has arguments that do not fit."""
    truncation_rate: float
    """Share of the episodes ended by a bound on tokens or time."""
    prefix_breaks: int
    """Generations whose prompt was not kept as it was sent: 0, or there is a bug."""
    tool_errors: Mapping[str, int]
    """Unexpected exceptions in tools, as `tool:Type`."""
    stops: Mapping[str, int]
    ledger: Ledger
    trajectories: Sequence[Trajectory] = field(repr=False, compare=False)

    @classmethod
    def of(cls, trajectories: Sequence[Trajectory]) -> Evaluation:
        valid = [t for t in trajectories if is_valid(t)]
        rewards = [t.reward or 0.0 for t in valid] or [0.0]
        turns = [turn for t in valid for turn in t.turns]
        tool_errors = sum((Counter(t.info.get("tool_errors", {})) for t in trajectories), Counter[str]())
        return cls(
            episodes=len(trajectories),
            failed=len(trajectories) - len(valid),
            success=statistics.fmean(rewards),
            reward_std=statistics.pstdev(rewards),
            turns_mean=_mean([len(t.turns) for t in valid]),
            tool_call_rate=_mean([t.tool_calls > 0 for t in valid]),
            episodes_with_tools=sum(bool(t.tools) for t in valid),
            parse_error_rate=_mean([turn.parse_error is not None for turn in turns]),
            truncation_rate=_mean([t.truncated for t in valid]),
            prefix_breaks=sum(t.prefix_breaks for t in trajectories),
            tool_errors=dict(tool_errors),
            stops=dict(Counter(str(t.stop) for t in trajectories)),
            ledger=total_ledger(segment for t in trajectories for segment in t.segments),
            trajectories=trajectories,
        )


async def evaluate(
    rollout: Rollout,
    tasks: Sequence[Task],
    *,
    name: str = "eval",
    on_episode: Callable[[Trajectory], None] | None = None,
) -> Evaluation:
    """One greedy episode of each task, in order. Raises as `run_groups` does."""
    groups = await run_groups(rollout, tasks, 1, sampling_params={"temperature": 0.0}, name=name, on_episode=on_episode)
    return Evaluation.of([group[0] for group in groups])


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else 0.0
