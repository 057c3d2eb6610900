"""What a run tells: its metrics a step, its summary, its curve."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.errors import LedgerError
from agentrl.rollout.evaluate import Evaluation
from agentrl.rollout.groups import is_valid
from agentrl.trajectory import Trajectory
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
    found = Evaluation.of([trajectory for group in groups for trajectory in group])
    ledger = found.ledger
    if ledger.sampled != ledger.trained + sum(ledger.masked.values()):
        raise LedgerError(f"sampled {ledger.sampled} != trained {ledger.trained} + masked {dict(ledger.masked)}")
    lengths = [sum(segment.response_length for segment in t.segments) for t in found.trajectories if is_valid(t)]
    return {
        "reward_mean": found.success,
        "reward_std": found.reward_std,
        "response_length_mean": statistics.fmean(lengths or [0]),
        "turns_mean": found.turns_mean,
        "episodes": found.episodes,
        "failed_episodes": found.failed,
        "groups": len(groups),
        "stops": found.stops,
        "episodes_with_tools": found.episodes_with_tools,
        "tool_call_rate": found.tool_call_rate,
        "parse_error_rate": found.parse_error_rate,
        "truncation_rate": found.truncation_rate,
        "tool_errors": found.tool_errors,
        "sampled_tokens": ledger.sampled,
        "trained_tokens": ledger.trained,
        "masked_tokens": dict(ledger.masked),
        "prefix_breaks": found.prefix_breaks,
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
