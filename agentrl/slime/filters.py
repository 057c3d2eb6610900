"""Which groups slime trains on, and which unfinished ones it goes on with first."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

from agentrl.errors import ConfigError
from agentrl.slime.host import filter_output
from agentrl.slime.rewards import rollout_rewards
from agentrl.slime.rollouts import account, by_rollout, is_valid, leaves

_EPSILON = 1e-6
"""slime's own (filter_hub/dynamic_sampling_filters.py:11)."""


def has_spread(args: Any, samples: list[Any], **kwargs: Any) -> Any:
    """--dynamic-sampling-filter-path: keep a group if the rewards of its episodes differ, so that it teaches something.

    slime's check_reward_nonzero_std for every shape (a fan-out counts as the one rollout it is), with episodes left out
    that the environment failed. A group that has fewer than two others is dropped; slime's metric
    `rollout/dynamic_filter/drop_...` names what failed. Raises ConfigError for groups of one, which never differ.

    Returns slime's DynamicFilterOutput, which alone carries the reason; where the host has none, a bool, which slime
    accepts as well.
    """
    rollouts = by_rollout(leaves(samples))
    if len(rollouts) < 2:
        raise ConfigError("agentrl.slime.has_spread compares episodes: set --n-samples-per-prompt to at least 2")
    reason = _why_not(args, rollouts)
    output = filter_output(rollouts[0][0])
    return reason is None if output is None else output(keep=reason is None, reason=reason)


def prefer_spread(args: Any, samples: list[Any], **kwargs: Any) -> Any:
    """--dynamic-sampling-filter-path: as `has_spread`, but keep a group without spread if slime would else sample anew.

    So that a dead environment, which leaves no group with a spread, cannot hold a rollout for ever. An older slime, and
    miles, know no such groups: there it is `has_spread`.
    """
    output = has_spread(args, samples, **kwargs)
    if not isinstance(output, bool):
        output.keep_when_insufficient = True
    return output


def _why_not(args: Any, rollouts: Sequence[Sequence[Any]]) -> str | None:
    """Why a group teaches nothing, as a part of a metric's name; None: it does."""
    rewards = rollout_rewards(args, [sample for siblings in rollouts for sample in siblings])
    if len(rewards) < 2:
        broken = Counter(_cause(siblings[0]) for siblings in rollouts if not is_valid(siblings[0]))
        return broken.most_common(1)[0][0]
    return None if statistics.stdev(rewards) > _EPSILON else f"zero_std_{round(rewards[0], 1)}"


def _cause(sample: Any) -> str:
    """As `failed_environment_step`, or `aborted`."""
    noted = account(sample)
    failure = noted.get("failure") or {}
    return "_".join(part for part in (noted["stop"], failure.get("kind"), failure.get("boundary")) if part)


def oldest_first(args: Any, rollout_id: int | None, buffer: list[list[Any]], num_samples: int) -> list[list[Any]]:
    """--buffer-filter-path: take groups out of the buffer in the order in which their prompts were drawn; drop none.

    slime's own takes them as they were put back, so a group that was aborted again queues behind younger ones. This
    bounds the age of what a resumed episode has sampled, and parked environments are back before they expire.
    """
    buffer.sort(key=_drawn)
    taken = buffer[:num_samples]
    del buffer[:num_samples]
    return taken


def _drawn(group: list[Any]) -> int:
    """The data source numbers prompts as it draws them; one that does not keeps the order of the buffer."""
    index = next(leaves(group)).group_index
    return -1 if index is None else index
