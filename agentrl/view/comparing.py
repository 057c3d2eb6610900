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
