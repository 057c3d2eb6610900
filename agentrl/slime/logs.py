"""agentrl's accounting among slime's metrics, and its canaries."""

from __future__ import annotations

import logging
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from agentrl.errors import CanaryError
from agentrl.rollout.canaries import Canaries, CanaryConfig
from agentrl.slime.rewards import compares, rollout_rewards
from agentrl.slime.rollouts import account, by_prompt, by_rollout, is_valid, leaves, of_host
from agentrl.types import JSON

log = logging.getLogger("agentrl")

_TRACKERS = ("observability.logging_utils", "utils.logging_utils", "utils.tracking_utils")
_STEPS = ("observability.metric_utils", "utils.metric_utils")
"""Where the host keeps `log(args, metrics, step_key)` and `compute_rollout_step`: slime now and earlier, and miles."""


def log_rollout(
    rollout_id: int,
    args: Any,
    samples: Sequence[Any],
    rollout_extra_metrics: Mapping[str, Any] | None,
    rollout_time: float,
) -> bool:
    """--custom-rollout-log-function-path: `rollout_metrics` as `rollout/agentrl/...`, beside slime's own metrics.

    Warns of what the canaries see; they never stop slime. False: slime goes on with its own logging.
    """
    if getattr(args, "load_debug_rollout_data", None):  # then slime logs nothing either
        return False
    if metrics := rollout_metrics(args, samples):
        _track(rollout_id, args, samples, "rollout", _flat("rollout/agentrl", metrics))
        for warning in _canaries_see(_canaries(compares(args)), {**metrics, "step": rollout_id}):
            log.warning(warning)
    return False


def log_eval(
    rollout_id: int, args: Any, data: Mapping[str, Mapping[str, Any]], extra_metrics: Mapping[str, Any] | None
) -> bool:
    """--custom-eval-rollout-log-function-path: `rollout_metrics` of each data set, as `eval/NAME/agentrl/...`.

    False: slime goes on with its own logging.
    """
    for name, found in data.items():
        samples = found.get("samples") or ()
        if metrics := rollout_metrics(args, samples, evaluation=True):
            _track(rollout_id, args, samples, "eval", _flat(f"eval/{name}/agentrl", metrics))
    return False


def rollout_metrics(args: Any, samples: Sequence[Any], *, evaluation: bool = False) -> dict[str, JSON]:
    """What the episodes behind these samples came to, under the names that the embedded trainer uses.

    Rewards, turns and rates leave out episodes that failed. Tokens are counted as they are trained: what slime or one
    of its filters masked on top is `host`, so sampled_tokens == trained_tokens + sum(masked_tokens.values()). Samples
    that another generate function made are left out; empty if there are no others.
    """
    played = [sample for sample in leaves(list(samples)) if account(sample)]
    if not played:
        return {}
    prompts = list(by_prompt(played).values())
    episodes = [siblings for group in prompts for siblings in by_rollout(group)]
    # Of siblings the last one speaks for the whole episode.
    notes = [account(siblings[-1]) for siblings in episodes]
    valid = [account(siblings[-1]) for siblings in episodes if is_valid(siblings[-1])]
    rewards = [rollout_rewards(args, group, evaluation=evaluation) for group in prompts]
    return {
        "reward_mean": _mean([reward for group in rewards for reward in group]),
        "reward_parts": _means([note.get("reward_parts", {}) for note in valid]),
        "episodes": len(episodes),
        "samples": len(played),
        "groups": len(prompts),
        "zero_advantage_groups": sum(len(set(group)) < 2 for group in rewards),
        **_endings(notes, valid),
        **_behaviour(notes, valid),
        **_tokens(played),
    }


def _endings(notes: Sequence[Mapping[str, Any]], valid: Sequence[Mapping[str, Any]]) -> dict[str, JSON]:
    failures = [note["failure"] for note in notes if note.get("failure")]
    return {
        "failed_episodes": len(notes) - len(valid),
        "failures": dict(Counter(f"{failure['kind']}/{failure['boundary']}" for failure in failures)),
        "stops": dict(Counter(note["stop"] for note in notes)),
        "resumes": sum(note.get("resumes", 0) for note in notes),
        "restarts": sum(note.get("restarts", 0) for note in notes),
    }


def _behaviour(notes: Sequence[Mapping[str, Any]], valid: Sequence[Mapping[str, Any]]) -> dict[str, JSON]:
    turns = [note.get("turns", 0) for note in valid]
    with_tools = [note for note in valid if note.get("tools")]
    info = [note.get("info", {}) for note in notes]
    return {
        "turns_mean": _mean(turns),
        "parse_error_rate": sum(note.get("parse_errors", 0) for note in valid) / max(sum(turns), 1),
        "episodes_with_tools": len(with_tools),
        "tool_call_rate": _mean([note["tool_calls"] > 0 for note in with_tools]),
        # An Env may have its own say under these names.
        "tool_errors": dict(_total(e for found in info if isinstance(e := found.get("tool_errors"), Mapping))),
        "observation_tokens_cut": sum(c for found in info if isinstance(c := found.get("observation_tokens_cut"), int)),
    }


def _tokens(samples: Iterable[Any]) -> dict[str, JSON]:
    sampled = trained = allowed = 0
    masked = Counter[str]()
    for sample in samples:
        ledger = account(sample)["ledger"]
        sampled += ledger["sampled"]
        allowed += ledger["trained"]
        trained += 0 if sample.remove_sample else sum(sample.loss_mask)
        masked.update(ledger["masked"])
    if allowed > trained:
        masked["host"] += allowed - trained
    return {"sampled_tokens": sampled, "trained_tokens": trained, "masked_tokens": dict(masked)}


def _track(rollout_id: int, args: Any, samples: Sequence[Any], kind: str, metrics: dict[str, float]) -> None:
    """Into the log, and to whatever the host tracks with (wandb, TensorBoard), at the step that it counts."""
    log.info("%s %d: %s", kind, rollout_id, metrics)
    sample = next(leaves(list(samples)))
    if track := of_host(sample, "log", *_TRACKERS):
        count = of_host(sample, "compute_rollout_step", *_STEPS)
        key = f"{kind}/step"
        track(args, {**metrics, key: count(args, rollout_id) if count else rollout_id}, step_key=key)


def _flat(name: str, value: JSON) -> dict[str, float]:
    """Metrics by path: what is a mapping gets a name for each of its keys."""
    if not isinstance(value, Mapping):
        return {name: value}
    return {path: number for key, inner in value.items() for path, number in _flat(f"{name}/{key}", inner).items()}


@cache
def _canaries(grouped: bool) -> Canaries:
    """Of this process, which is one run. Where rewards are not compared within groups, equal ones are no alarm."""
    return Canaries(CanaryConfig() if grouped else CanaryConfig(zero_advantage=0))


def _canaries_see(canaries: Canaries, metrics: Mapping[str, Any]) -> list[str]:
    try:
        return canaries.watch(metrics)
    except CanaryError as alarm:  # the embedded trainer stops at it; a cluster's run is the user's to stop
        return [str(alarm)]


def _total(counts: Iterable[Mapping[str, int]]) -> Counter[str]:
    return sum((Counter(count) for count in counts), Counter[str]())


def _means(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Of each part, over the episodes that have it."""
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: _mean([part[name] for part in parts if name in part]) for name in names}


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else 0.0
