"""The outcome of a run for programs, `agentrl train --json`: read from the run folder, also after a stop."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

from agentrl.monitor.run_figures import RunFigures
from agentrl.monitor.verdicts import verdicts
from agentrl.train.held_out import HeldOut
from agentrl.train.run_folder import RunFolder
from agentrl.types import JSON

Outcome: TypeAlias = Literal["learned", "unchanged", "worse", "not_evaluated", "stopped", "interrupted", "failed"]
"""learned: the 95 % interval after RL lies above the mean before RL. worse: it lies below. unchanged: neither.
not_evaluated: there are no held-out tasks, or no step of RL. stopped: by a canary. failed: exit code 1 or 2."""

_PHASES: Mapping[str, str] = {"before": "start", "after_imitation": "warm", "after_rl": "final"}
"""The name of an evaluation in the outcome -> its name in evaluations.jsonl."""
_SIGNALS = (
    "reward_mean",
    "groups",
    "zero_advantage_groups",
    "tool_call_rate",
    "bad_call_rate",
    "truncation_rate",
    "failed_episodes",
    "turns_mean",
    "stops",
)
"""The metrics of the first and the last step that show the cause if a run does not learn."""
_OUTCOMES: Mapping[int, Outcome] = {3: "stopped", 130: "interrupted", 143: "interrupted"}
"""Exit code -> outcome. The outcome of other codes except 0 is `failed`."""


def outcome(run: Path | None, *, exit_code: int = 0, error: str | None = None) -> dict[str, JSON]:
    """The document of `agentrl train --json`. `run` is the run folder; None if the command did not begin a run."""
    folder = RunFolder(run) if run is not None else None
    results = folder.read_evaluations() if folder else []
    metrics = folder.read_metrics() if folder else []
    latest = {result.name: result for result in results}
    held_out = {phase: latest.get(name) for phase, name in _PHASES.items()}
    gain = _gain(held_out, len(metrics))
    return {
        "outcome": _OUTCOMES.get(exit_code, "failed") if exit_code else _outcome(held_out, gain),
        "exit_code": exit_code,
        "error": error,
        "verdicts": [verdict.to_json() for verdict in verdicts(RunFigures.read(folder.path))] if folder else [],
        "held_out": {**{phase: _to_json(result) for phase, result in held_out.items()}, "best": _best(folder, results)},
        "gain_by_rl": gain,
        "steps": len(metrics),
        "first_step": _signals(metrics[:1]),
        "last_step": _signals(metrics[-1:]),
        "warnings": _warnings(folder),
        "seconds": _seconds(folder),
        "paths": _paths(folder) if folder else {},
    }


def _gain(held_out: Mapping[str, HeldOut | None], steps: int) -> float | None:
    """The mean after RL less the mean before RL; None if either is missing, or without a step of RL."""
    base, final = held_out["after_imitation"] or held_out["before"], held_out["after_rl"]
    if base is None or final is None or base.score.mean is None or final.score.mean is None or not steps:
        return None
    return round(final.score.mean - base.score.mean, 6)


def _outcome(held_out: Mapping[str, HeldOut | None], gain: float | None) -> Outcome:
    final = held_out["after_rl"]
    if gain is None or final is None or final.score.mean is None:
        return "not_evaluated"
    base = final.score.mean - gain
    if final.score.low is not None and final.score.low > base:
        return "learned"
    return "worse" if final.score.high is not None and final.score.high < base else "unchanged"


def _to_json(result: HeldOut | None) -> dict[str, JSON] | None:
    return None if result is None else result.to_json()


def _best(folder: RunFolder | None, results: Sequence[HeldOut]) -> dict[str, JSON] | None:
    if folder is None:
        return None
    folder.results = list(results)
    return _to_json(folder.best_result())


def _signals(metrics: Sequence[Mapping[str, Any]]) -> dict[str, JSON] | None:
    return {name: line.get(name) for line in metrics for name in _SIGNALS} or None


def _warnings(folder: RunFolder | None) -> list[JSON]:
    """The warnings of canaries and others, in order, each with the step."""
    file = folder.path / "events.jsonl" if folder else None
    lines = file.read_text(encoding="utf-8").splitlines() if file and file.exists() else []
    events = [json.loads(line) for line in lines if line.endswith("}")]  # a kill cuts a line short
    return [{key: event[key] for key in ("step", "message")} for event in events]


def _seconds(folder: RunFolder | None) -> float | None:
    if folder is None or not folder.bill.exists():
        return None
    seconds: float = json.loads(folder.bill.read_text(encoding="utf-8"))["total_seconds"]
    return round(seconds, 1)


def _paths(folder: RunFolder) -> dict[str, JSON]:
    """The files and folders of the run that exist, by name."""
    places = {
        "run": folder.path,
        "model": folder.model,
        "best": folder.best,
        "summary": folder.path / "summary.json",
        "metrics": folder.metrics,
        "evaluations": folder.evaluations,
        "trajectories": folder.trajectories,
        "events": folder.path / "events.jsonl",
        "curve": folder.path / "reward.png",
    }
    return {name: str(place) for name, place in places.items() if place.exists()}
