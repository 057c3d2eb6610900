"""Converts a Trajectory to a slime Sample that every part of slime accepts."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from agentrl.errors import ConfigError
from agentrl.monitor.metrics import failed_at, role_rewards
from agentrl.plain import to_json_lossy
from agentrl.trajectory.model_output import ModelOutput
from agentrl.trajectory.segment import Segment
from agentrl.trajectory.trajectory import Trajectory, Turn, total_ledger
from agentrl.types import JSON, StopReason

METADATA_KEY = "agentrl"
"""The key of `sample.metadata` that agentrl writes. The value is the account of the episode. Other keys belong to the
user."""
WRITTEN_KEY = "written"
"""The key in the account of the model's output, for a grader of `agentrl.rewards`. Only episodes without a score have
it."""
SPANS_KEY = "spans"
"""The key in the account of the spans of the response: [start, stop, kind, reason, turn] of each span. `kind` tells who
wrote the tokens, `reason` why they are masked. The viewer reads the spans from slime's dumps."""
BRANCH_KEY = "branch"
"""The key in the account of the branch that an agent's `score` rewarded with the sample's reward. "" for the main
conversation."""
EPISODE_REWARD_KEY = "reward"
"""The key in the account of the whole episode's reward, if the samples of its branches have separate rewards."""
ROUNDS_KEY = "round_number"
"""A key that agentrl writes under --log-multi-turn, in addition to METADATA_KEY. slime's metrics read the number of
turns from it."""

NO_TOKEN = 0
"""The token id that stands for the prompt of an episode without a prompt."""

_ASIDE = "agentrl_reward"
_ROW_KEY = "row"
"""The key in the account of the value that the row itself had under METADATA_KEY."""

_STATUS: Mapping[StopReason, str] = {
    StopReason.DONE: "COMPLETED",
    StopReason.MAX_TURNS: "COMPLETED",
    StopReason.BAD_CALLS: "COMPLETED",
    StopReason.TURN_MAX_TOKENS: "TRUNCATED",
    StopReason.MAX_TOKENS: "TRUNCATED",
    StopReason.CONTEXT_FULL: "TRUNCATED",
    StopReason.MAX_IMAGES: "TRUNCATED",
    StopReason.DEADLINE: "TRUNCATED",
    StopReason.ABORTED: "ABORTED",
    StopReason.FAILED: "FAILED",
}
"""The end of an episode -> the name in slime's Sample.Status. The policy causes MAX_TURNS and BAD_CALLS, so these
episodes are complete."""
_STOPS = frozenset(map(str, _STATUS))


def episode_metadata(sample: Any) -> Mapping[str, JSON]:
    """The account of a sample's episode: the entries that `adapt` wrote to metadata["agentrl"]. Empty without an
    episode, because a row may use the key for other values."""
    account = sample.metadata.get(METADATA_KEY) if isinstance(sample.metadata, Mapping) else None
    return account if isinstance(account, Mapping) and account.get("stop") in _STOPS else {}


def is_played(sample: Any) -> bool:
    """Whether `adapt` played the sample. The account of any other sample has at most the failure of its grader."""
    return "ledger" in episode_metadata(sample)


def write_account(sample: Any, account: Mapping[str, JSON]) -> None:
    """Write `account` to metadata["agentrl"], in a new mapping, since samples may share a mapping. slime pickles the
    mapping, so `account` has plain values."""
    metadata = sample.metadata if isinstance(sample.metadata, Mapping) else {}
    row = {_ROW_KEY: own_metadata(metadata)[METADATA_KEY]} if METADATA_KEY in own_metadata(metadata) else {}
    _write(sample, metadata={**metadata, METADATA_KEY: {**account, **row}})


def set_reward_aside(sample: Any) -> None:
    """Move the reward to another attribute. Some hosts' reward models of groups refuse samples with a reward."""
    setattr(sample, _ASIDE, sample.reward)
    sample.reward = None


def reward_aside(sample: Any) -> Any:
    """The reward that `set_reward_aside` has moved, or None."""
    return getattr(sample, _ASIDE, None)


def own_metadata(metadata: Mapping[str, JSON]) -> dict[str, JSON]:
    """The metadata of the row itself, without agentrl's account."""
    row, account = dict(metadata), metadata.get(METADATA_KEY)
    if isinstance(account, Mapping) and account.get("stop") in _STOPS:
        del row[METADATA_KEY]
        if _ROW_KEY in account:
            row[METADATA_KEY] = account[_ROW_KEY]
    return row


def clear(sample: Any) -> None:
    """Reset the fields of an earlier attempt.

    The reward is reset because slime calls its reward model only for samples without a reward. The loss_mask is reset
    because it described the discarded tokens. Each field with a name `rollout_...` is reset for the same reason, except
    for the rollout's number.
    """
    names = getattr(sample, "__dataclass_fields__", ())
    vars(sample).pop(_ASIDE, None)
    _write(
        sample,
        tokens=[],
        response="",
        response_length=0,
        reward=None,
        loss_mask=None,
        **{name: None for name in names if name.startswith("rollout_") and name != "rollout_id"},
        weight_versions=[],
        remove_sample=False,
        non_generation_time=0.0,
        multimodal_train_inputs=None,
        status=type(sample).Status.PENDING,
    )
    for name, kind in (("spec_info", "SpecInfo"), ("prefix_cache_info", "PrefixCacheInfo")):
        if hasattr(sample, name):
            setattr(sample, name, getattr(type(sample), kind)())


def to_sample(
    trajectory: Trajectory,
    sample: Any,
    *,
    decode: Callable[[Sequence[int]], str],
    extra: Mapping[str, JSON] | None = None,
    evaluation: bool = False,
) -> Any:
    """Write a trajectory into a cleared Sample, and return the Sample. Every trajectory becomes a valid Sample.

    A failed episode is masked and removed. Its reward is 0.0. An aborted episode has the reward 0.0, too, because slime
    computes with the reward. Otherwise the reward is the trajectory's. If the trajectory has no reward, slime's reward
    model decides. If an agent's branches have rewards, training gets the reward of the main conversation's branch, and
    evaluation gets the reward of the episode. `extra` is added to metadata["agentrl"].

    Only the last segment's tokens are written, as evaluation needs them. `to_samples` writes all segments. The ledger
    in the metadata counts all segments.
    """
    _write_tokens(trajectory.segment, trajectory, sample, decode)
    if evaluation and trajectory.is_valid:
        _write(sample, reward=trajectory.reward)
    _write_counts(trajectory.turns, sample)
    whole: dict[str, JSON] = {
        "ledger": asdict(total_ledger(trajectory.segments)),
        SPANS_KEY: _spans(trajectory.segment),
        **_branch(trajectory, trajectory.segment),
    }
    if left_out := len(trajectory.segments) - 1:
        whole["segments_left_out"] = left_out
    write_account(sample, {**_metadata(trajectory), **whole, **(extra or {})})
    return sample


def to_samples(
    trajectory: Trajectory,
    sample: Any,
    *,
    decode: Callable[[Sequence[int]], str],
    extra: Mapping[str, JSON] | None = None,
) -> list[Any]:
    """A Sample to train on for each segment of an episode. These siblings are valid Samples with the same rollout_id
    and status.

    Each sibling has the tokens, ledger, counters and reward of one segment. The reward is the episode's, unless an
    agent's branches have rewards. Only the last sibling holds the data of the whole episode. The last sibling is the
    `sample` that slime, its traces and its hooks know; the others are copies. Raises ConfigError for a Sample without a
    rollout_id, since its trainer would count an episode of n segments n times.
    """
    segments = trajectory.segments
    siblings = siblings_of(sample, len(segments))
    for i, (segment, sibling) in enumerate(zip(segments, siblings, strict=True)):
        whole = segment is trajectory.segment
        _write_tokens(segment, trajectory, sibling, decode)
        _write_counts(segment.turns, sibling)
        about = {**_metadata(trajectory), **(extra or {})} if whole else _outcome(trajectory)
        of_segment = {
            "segment": i,
            "segments": len(segments),
            "ledger": asdict(segment.ledger),
            SPANS_KEY: _spans(segment),
            **_branch(trajectory, segment),
        }
        write_account(sibling, {**about, **of_segment})
    return siblings


def siblings_of(sample: Any, count: int) -> list[Any]:
    """`count` samples of an episode with the same rollout_id. All are copies of `sample`, except for the last, which is
    `sample` itself.

    Raises ConfigError for a Sample without the field.
    """
    _number_rollout(sample)
    copies = [copy.deepcopy(sample) for _ in range(count - 1)]
    for sibling in copies:
        vars(sibling).pop("trace", None)  # slime counts each request in the trace
    return [*copies, sample]


def _number_rollout(sample: Any) -> None:
    """Set the siblings' common rollout_id to the sample's index, which is unique in a run of slime."""
    if not hasattr(sample, "rollout_id"):
        raise ConfigError(
            "an episode of several samples (thinking: strip, limits.compact_at, or seats) needs a Sample with a "
            "rollout_id, as slime's has: without one, it would be trained as several episodes; leave the setting out"
        )
    if sample.rollout_id is None:
        sample.rollout_id = sample.index
    if sample.rollout_id is None:
        raise ConfigError(
            "an episode of several samples needs sample.index: let the data source number its samples, as slime's does"
        )


def _write_tokens(segment: Segment, episode: Trajectory, sample: Any, decode: Callable[[Sequence[int]], str]) -> None:
    """Write a segment's tokens, mask and log-probs, and the reward and status of its episode."""
    stop = episode.stop or StopReason.FAILED
    failed = stop is StopReason.FAILED
    if failed:
        episode.mask("env_failure")
    tokens = segment.tokens or [NO_TOKEN]
    response, loss_mask, log_probs = segment.response, segment.loss_mask, segment.log_probs
    if not response:
        # slime's loss reads tokens[-response_length:], which at 0 is the whole list. So a masked token is added.
        tokens, loss_mask, log_probs = [*tokens, tokens[-1]], [0], [0.0]
    _write(
        sample,
        tokens=tokens,
        response=decode(response) if response else "",
        response_length=len(loss_mask),
        loss_mask=loss_mask,
        rollout_log_probs=log_probs,
        reward=0.0 if failed or stop is StopReason.ABORTED else episode.earned[episode.paid_as(segment)],
        remove_sample=failed,
        status=type(sample).Status[_STATUS[stop]],
    )


def _branch(trajectory: Trajectory, segment: Segment) -> dict[str, JSON]:
    """The entry BRANCH_KEY of the account, if an agent's branches have rewards."""
    return {BRANCH_KEY: trajectory.paid_as(segment)} if trajectory.branch_rewards else {}


def _spans(segment: Segment) -> list[JSON]:
    return [[span.start, span.stop, span.kind, span.masked, span.turn] for span in segment.spans]


def _outcome(trajectory: Trajectory) -> dict[str, JSON]:
    """The entries of the account about the end of the episode, the same in all samples of the episode."""
    outcome: dict[str, JSON] = {"stop": str(trajectory.stop or StopReason.FAILED), "session_id": trajectory.session_id}
    if trajectory.seat:
        outcome["seat"] = trajectory.seat
    if trajectory.reward is None and trajectory.is_valid:
        outcome[WRITTEN_KEY] = ModelOutput.of(trajectory).to_json()
    if failure := trajectory.failure:
        cause = {"kind": failure.kind, "boundary": failure.boundary, "error": failure.error, "at": failed_at(failure)}
        outcome["failure"] = cause
    return {name: to_json_lossy(value) for name, value in outcome.items()}


def _metadata(trajectory: Trajectory) -> dict[str, JSON]:
    """The entries of the account about the episode for which slime has no field."""
    metadata: dict[str, JSON] = {
        **_outcome(trajectory),
        "turns": trajectory.turn_count,
        "tools": len(trajectory.tools),
        "tool_calls": trajectory.tool_call_count,
        "bad_calls": sum(turn.bad_call is not None for segment in trajectory.segments for turn in segment.turns),
        "ledger": asdict(trajectory.ledger),
        "reward_parts": to_json_lossy(trajectory.reward_parts),
        **asdict(trajectory.checks),
    }
    if trajectory.branch_rewards:
        metadata |= to_json_lossy({EPISODE_REWARD_KEY: trajectory.reward, "role_rewards": role_rewards(trajectory)})
    if trajectory.info:
        metadata["info"] = to_json_lossy(trajectory.info)
    return metadata


def _write_counts(turns: Sequence[Turn], sample: Any) -> None:
    """Write the fields for slime's metrics: weight versions, seconds, prefix cache, speculative decoding."""
    _write(
        sample,
        weight_versions=[version for turn in turns for version in turn.weight_versions],
        non_generation_time=sum(turn.env_s for turn in turns),
    )
    cache, speculation = getattr(sample, "prefix_cache_info", None), getattr(sample, "spec_info", None)
    for turn in turns:
        if cache is not None:
            cache.add({"cached_tokens": turn.cached_tokens, "prompt_tokens": turn.prompt_tokens})
        for meta in turn.meta:
            if speculation is not None and "spec_verify_ct" in meta:
                speculation.add(meta)


def _write(sample: Any, **values: Any) -> None:
    """Set those fields that the Sample has. The Samples of miles lack some fields."""
    for name, value in values.items():
        if hasattr(sample, name):
            setattr(sample, name, value)
