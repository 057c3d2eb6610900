"""Adds agentrl's metrics to slime's metrics, and logs the warnings of agentrl's canaries."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from typing import Any

from agentrl.errors import CanaryError
from agentrl.monitor.canaries import Canaries, CanaryConfig
from agentrl.monitor.metrics import EpisodeMetrics, RolloutMetrics
from agentrl.slime.data_source import note_shipped
from agentrl.slime.host import HostArgs, tracked_step, tracker
from agentrl.slime.rewards import rollout_rewards
from agentrl.slime.rollouts import by_prompt, by_rollout, flat_samples
from agentrl.slime.sample import episode_metadata, is_played
from agentrl.trajectory.spans import Ledger
from agentrl.types import JSON, CheckCounts, StopReason

log = logging.getLogger("agentrl")


def log_rollout(
    rollout_id: int,
    args: Any,
    samples: Sequence[Any],
    rollout_extra_metrics: Mapping[str, Any] | None,
    rollout_time: float,
) -> bool:
    """--custom-rollout-log-function-path: log `rollout_metrics` as `rollout/agentrl/...`, in addition to slime's
    metrics.

    This call tells `agentrl.slime.DataSource` which groups were given to the trainer. Logs a warning for each canary
    that fires; canaries never stop slime. Returns False, so slime logs as usual.
    """
    flags = HostArgs.of(args)
    if flags.load_debug_rollout_data:  # slime does not log then either
        return False
    note_shipped(args, rollout_id, samples)
    if metrics := rollout_metrics(args, samples):
        _track(rollout_id, args, samples, "rollout", _flat("rollout/agentrl", metrics.to_json()))
        for warning in _canary_warnings(_canaries(flags.centred), rollout_id, metrics):
            log.warning(warning)
        if (mostly_masked := _host_warning(rollout_id, samples, metrics)) is not None:
            log.warning(mostly_masked)
    return False


def log_eval(
    rollout_id: int, args: Any, data: Mapping[str, Mapping[str, Any]], extra_metrics: Mapping[str, Any] | None
) -> bool:
    """--custom-eval-rollout-log-function-path: log `rollout_metrics` of each data set as `eval/NAME/agentrl/...`.

    Returns False, so slime logs as usual.
    """
    for name, results in data.items():
        samples = results.get("samples") or ()
        if metrics := rollout_metrics(args, samples, evaluation=True):
            _track(rollout_id, args, samples, "eval", _flat(f"eval/{name}/agentrl", metrics.to_json()))
    return False


def rollout_metrics(args: Any, samples: Sequence[Any], *, evaluation: bool = False) -> RolloutMetrics | None:
    """The metrics of the episodes in these samples. None if no sample comes from `adapt`.

    Tokens are counted as slime trains them. Tokens that slime or its filters masked in addition count as `host`, so
    sampled_tokens == trained_tokens + sum(masked_tokens.values()).
    """
    played_samples = [sample for sample in flat_samples(list(samples)) if is_played(sample)]
    if not played_samples:
        return None
    prompts = list(by_prompt(played_samples).values())
    groups = [[_episode(siblings) for siblings in by_rollout(group)] for group in prompts]
    return RolloutMetrics.of(
        [episode for group in groups for episode in group],
        [rollout_rewards(args, group, evaluation=evaluation) for group in prompts],
        _tokens(played_samples),
        samples=len(played_samples),
        failed_groups=sum(all(episode.failure for episode in group) for group in groups),
    )


def _host_warning(rollout_id: int, samples: Sequence[Any], metrics: RolloutMetrics) -> str | None:
    """A warning if slime or its filters masked more than half of the sampled tokens, else None."""
    masked, sampled = metrics.masked_tokens.get("host", 0), metrics.sampled_tokens
    if 2 * masked <= sampled:
        return None
    notes = (episode_metadata(sample) for sample in flat_samples(list(samples)))
    left_out = sum(note.get("segments_left_out", 0) for note in notes if note)
    cause = (
        f"{left_out} segments were left out, because slime takes one sample for each episode here: run `agentrl check "
        "slime`, which names the flag that is in the way"
        if left_out
        else "slime or one of its filters removed them: look at its filters and --mask-offpolicy-in-partial-rollout"
    )
    return f"rollout {rollout_id}: {masked} of {sampled} sampled tokens are not trained (masked as host); {cause}"


def _episode(siblings: Sequence[Any]) -> EpisodeMetrics:
    """The metrics of an episode. `siblings` are the samples of the episode; the last sample has the data of the whole
    episode."""
    note = episode_metadata(siblings[-1])
    failure = note.get("failure")
    return EpisodeMetrics(
        stop=StopReason(note["stop"]),
        turns=note.get("turns", 0),
        bad_calls=note.get("bad_calls", 0),
        tools=note.get("tools", 0),
        tool_calls=note.get("tool_calls", 0),
        response_length=sum(sample.response_length for sample in siblings),
        failure=failure and f"{failure['kind']}/{failure['boundary']}",
        failed_at=failure and failure.get("at"),
        reward_parts=note.get("reward_parts", {}),
        role_rewards=note.get("role_rewards", {}),
        resumes=note.get("resumes", 0),
        restarts=note.get("restarts", 0),
        **{counter.name: note.get(counter.name, 0) for counter in fields(CheckCounts)},
        **EpisodeMetrics.said_in(note.get("info", {})),
    )


def _tokens(samples: Iterable[Any]) -> Ledger:
    sampled = trained = allowed = 0
    masked = Counter[str]()
    for sample in samples:
        ledger = episode_metadata(sample)["ledger"]
        sampled += ledger["sampled"]
        allowed += ledger["trained"]
        trained += 0 if sample.remove_sample else sum(sample.loss_mask)
        masked.update(ledger["masked"])
    if allowed > trained:
        masked["host"] += allowed - trained
    return Ledger(sampled, trained, dict(masked))


def _track(rollout_id: int, args: Any, samples: Sequence[Any], kind: str, metrics: dict[str, float]) -> None:
    """Write metrics to the log and to slime's tracker (wandb, TensorBoard), at slime's step."""
    log.info("%s %d: %s", kind, rollout_id, metrics)
    sample = next(flat_samples(list(samples)))
    if track := tracker(sample):
        key = f"{kind}/step"
        track(args, {**metrics, key: tracked_step(args, sample, rollout_id)}, step_key=key)


def _flat(name: str, value: JSON) -> dict[str, float]:
    """Path -> number: a mapping becomes a metric for each of its keys."""
    if not isinstance(value, Mapping):
        return {name: value}
    return {path: number for key, inner in value.items() for path, number in _flat(f"{name}/{key}", inner).items()}


@cache
def _canaries(grouped: bool) -> Canaries:
    """The canaries of this process, which takes part in a single run. If groups are not compared, equal rewards cause
    no warning."""
    return Canaries(CanaryConfig(), grouped=grouped)


def _canary_warnings(canaries: Canaries, step: int, metrics: RolloutMetrics) -> list[str]:
    try:
        return canaries.watch(step, metrics)
    except CanaryError as alarm:  # the embedded trainer stops here; on a cluster the user decides
        return [str(alarm)]
