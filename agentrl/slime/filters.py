"""Filters: which groups slime trains, and in which order slime takes unfinished groups."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

from agentrl.errors import ConfigError
from agentrl.slime.fatal import check_played
from agentrl.slime.host import filter_output
from agentrl.slime.rewards import rewards_by_role, rollout_rewards
from agentrl.slime.rollouts import by_rollout, flat_samples, is_valid
from agentrl.slime.sample import episode_metadata

_EPSILON = 1e-6
"""The standard deviation of rewards up to which slime calls the rewards equal
(filter_hub/dynamic_sampling_filters.py:11)."""


def has_spread(args: Any, samples: list[Any], **kwargs: Any) -> Any:
    """--dynamic-sampling-filter-path: keep a group if the rewards of its episodes differ.

    The filter does the same as slime's check_reward_nonzero_std, also if an episode has several samples (a fan-out):
    they count as a single rollout. Episodes that the environment failed are left out. A group with fewer than two valid
    episodes is dropped, and slime's metric `rollout/dynamic_filter/drop_...` names the cause. Raises ConfigError for
    groups of one, which never differ, and for episodes that a wrong configuration kept from being played.

    Returns slime's DynamicFilterOutput, which carries the reason. If slime or miles lacks the class, returns a bool.
    """
    check_played(flat_samples(samples))
    rollouts = by_rollout(flat_samples(samples))
    if len(rollouts) < 2:
        raise ConfigError("agentrl.slime.has_spread compares episodes: set --n-samples-per-prompt to at least 2")
    reason = _drop_reason(args, rollouts)
    output = filter_output(rollouts[0][0])
    return reason is None if output is None else output(keep=reason is None, reason=reason)


def prefer_spread(args: Any, samples: list[Any], **kwargs: Any) -> Any:
    """--dynamic-sampling-filter-path: as `has_spread`, but keep a group whose rewards are equal if slime would sample a
    new group in its place.

    If the environment does not work, all rewards are equal. This filter keeps such a run from sampling forever. Older
    versions of slime, and miles, cannot keep such groups: there the filter equals `has_spread`.
    """
    output = has_spread(args, samples, **kwargs)
    if not isinstance(output, bool):
        output.keep_when_insufficient = True
    return output


def _drop_reason(args: Any, rollouts: Sequence[Sequence[Any]]) -> str | None:
    """The reason to drop a group, as a part of a metric's name. None to keep the group."""
    rewards = rollout_rewards(args, [sample for siblings in rollouts for sample in siblings])
    if len(rewards) < 2:
        broken = Counter(_cause(siblings[0]) for siblings in rollouts if not is_valid(siblings[0]))
        return broken.most_common(1)[0][0]
    compared = rewards_by_role(args, [sample for siblings in rollouts for sample in siblings]).values()
    spread = max(statistics.stdev(values) if len(values) > 1 else 0.0 for values in compared)
    return None if spread > _EPSILON else f"zero_std_{round(rewards[0], 1)}"


def _cause(sample: Any) -> str:
    """The cause of a failed or aborted sample as a word, such as `failed_environment_step` or `aborted`."""
    about = episode_metadata(sample)
    failure = about.get("failure") or {}
    return "_".join(part for part in (about["stop"], failure.get("kind"), failure.get("boundary")) if part)


def oldest_first(args: Any, rollout_id: int | None, buffer: list[list[Any]], num_samples: int) -> list[list[Any]]:
    """--buffer-filter-path: take groups out of the buffer in the order in which their prompts were drawn. No group is
    dropped.

    slime's own filter takes the groups in the order of their return. A group that was aborted twice then waits for
    younger groups. In the order of the prompts, tokens of resumed episodes stay recent, and parked environments are
    used before they expire.
    """
    buffer.sort(key=_prompt_order)
    taken = buffer[:num_samples]
    del buffer[:num_samples]
    return taken


def _prompt_order(group: list[Any]) -> int:
    """The sort key of a group: the number of its prompt. If the data source gives no numbers, the buffer keeps its
    order."""
    index = next(flat_samples(group)).group_index
    return -1 if index is None else index
