"""What a run tells: its metrics a step, its summary, its curve."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.errors import LedgerError
from agentrl.rollout.groups import is_valid
from agentrl.trajectory import Trajectory, total_ledger
from agentrl.types import JSON


@dataclass(frozen=True, slots=True)
class Summary:
    """A whole run. Evaluations are held-out mean rewards of greedy episodes, None where there was none."""

    eval_start: float | None
    eval_warm: float | None
    eval_final: float | None
    reward_first: float | None
    reward_last: float | None
    steps: int
    seconds: float
    sampled_tokens: int
    trained_tokens: int
    masked_tokens: Mapping[str, int]

    @classmethod
    def of(cls, evals: Mapping[str, float], metrics: Sequence[Mapping[str, Any]], seconds: float) -> Summary:
        masked: dict[str, int] = {}
        for line in metrics:
            for reason, tokens in line["masked_tokens"].items():
                masked[reason] = masked.get(reason, 0) + tokens
        return cls(
            eval_start=evals.get("start"),
            eval_warm=evals.get("warm"),
            eval_final=evals.get("final"),
            reward_first=metrics[0]["reward_mean"] if metrics else None,
            reward_last=metrics[-1]["reward_mean"] if metrics else None,
            steps=len(metrics),
            seconds=round(seconds, 1),
            sampled_tokens=sum(line["sampled_tokens"] for line in metrics),
            trained_tokens=sum(line["trained_tokens"] for line in metrics),
            masked_tokens=masked,
        )


def rollout_metrics(groups: Sequence[Sequence[Trajectory]]) -> dict[str, JSON]:
    """A step's episodes in numbers. Raises LedgerError unless every sampled token is trained or masked by a reason."""
    trajectories = [trajectory for group in groups for trajectory in group]
    ledger = total_ledger(trajectories)
    if ledger.sampled != ledger.trained + sum(ledger.masked.values()):
        raise LedgerError(f"sampled {ledger.sampled} != trained {ledger.trained} + masked {dict(ledger.masked)}")
    valid = [trajectory for trajectory in trajectories if is_valid(trajectory)]
    rewards = [trajectory.reward or 0.0 for trajectory in valid] or [0.0]
    return {
        "reward_mean": statistics.fmean(rewards),
        "reward_std": statistics.pstdev(rewards),
        "response_length_mean": statistics.fmean([t.response_length for t in valid] or [0]),
        "turns_mean": statistics.fmean([len(t.turns) for t in valid] or [0]),
        "episodes": len(trajectories),
        "failed_episodes": len(trajectories) - len(valid),
        "sampled_tokens": ledger.sampled,
        "trained_tokens": ledger.trained,
        "masked_tokens": dict(ledger.masked),
    }


def draw_curve(metrics: Sequence[Mapping[str, Any]], evals: Mapping[str, float], file: Path) -> bool:
    """Plot each step's reward, and held-out success where it was measured. False: matplotlib is not installed."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.plot([m["step"] for m in metrics], [m["reward_mean"] for m in metrics], label="reward, sampled")
    held_out = [(m["step"], m["eval_success"]) for m in metrics if "eval_success" in m]
    if evals:
        held_out = [(0, evals.get("warm", evals["start"])), *held_out, (metrics[-1]["step"], evals["final"])]
        axes.plot(*zip(*held_out, strict=True), "o-", label="held out, greedy")
    axes.set(xlabel="step", ylabel="mean reward")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(file, dpi=120)
    return True
