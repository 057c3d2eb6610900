"""Differences between runs: metrics, held-out rewards with intervals, and configuration keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from agentrl.monitor.by_key import Score, score_of
from agentrl.types import JSON
from agentrl.view.files import outlines
from agentrl.view.sources import Run

ENDS = 5
"""Number of steps at each end of a run over which a metric is averaged."""
_ALWAYS = ("out",)


def held_out(run: Run) -> dict[str, Score]:
    """The held-out reward of each evaluation, computed from the episodes."""
    scores: dict[str, Score] = {}
    for name in run.listing():
        if not name.startswith("eval_"):
            continue
        listed = [outline for _, outline in outlines(run.file(name))]
        failed = sum(outline.get("stop") in ("failed", "aborted") for outline in listed)
        valid = [outline for outline in listed if outline.get("stop") not in ("failed", "aborted")]
        rewards = [outline["reward"] for outline in valid if outline.get("reward") is not None]
        scores[name.removeprefix("eval_")] = score_of(rewards, failed)
    return scores


def ends(metrics: Sequence[Mapping[str, JSON]], name: str) -> tuple[float, float] | None:
    """The mean of a metric over the first and over the last steps."""
    values = [line[name] for line in metrics if isinstance(line.get(name), int | float)]
    return (fmean(values[:ENDS]), fmean(values[-ENDS:])) if values else None


_PARTS = {"env": "other Env", "eval_tasks": "other tasks"}
"""Key of a fingerprint -> the reason why two runs with different values cannot be compared task by task."""


def unlike(runs: Sequence[Run]) -> list[str]:
    """The reasons why the held-out tasks of the runs cannot be paired, such as `other Env: one, two`. Runs of an older
    version, without a fingerprint, can be paired."""
    reasons = []
    for key, reason in _PARTS.items():
        digests = [(run.name, run.fingerprint[key]) for run in runs if key in run.fingerprint]
        others = [name for name, digest in digests if digest != digests[0][1]]
        if others:
            reasons.append(f"{reason} than {digests[0][0]}: {', '.join(others)}")
    return reasons


def differences(runs: Sequence[Run]) -> list[Score | None]:
    """For each run but the first, the mean difference of its last evaluation from that of the first run, task by task.
    None without evaluations of the same number of tasks. Empty if the runs cannot be paired."""
    if unlike(runs):
        return []
    rewards = [list(lines[-1].get("rewards") or ()) if (lines := run.evaluations()) else [] for run in runs]
    return [_difference(rewards[0], of_run) for of_run in rewards[1:]]


def _difference(one: Sequence[float | None], other: Sequence[float | None]) -> Score | None:
    pairs = zip(one, other, strict=False)
    values = [after - before for before, after in pairs if before is not None and after is not None]
    return score_of(values) if values and len(one) == len(other) else None


def differing(configs: Sequence[Mapping[str, JSON]]) -> dict[str, list[JSON]]:
    """Keys with different values in the configurations -> the values, in order."""
    flat = [dict(_flat(config)) for config in configs]
    keys = dict.fromkeys(key for config in flat for key in config if key not in _ALWAYS)
    values_by_key = {key: [config.get(key) for config in flat] for key in keys}
    return {key: values for key, values in values_by_key.items() if any(value != values[0] for value in values)}


def _flat(config: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, JSON]]:
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value
