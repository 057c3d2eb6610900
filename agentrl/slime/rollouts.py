"""Reads slime's Samples for the hooks: the samples of each rollout, their validity, and their rewards."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

from agentrl.errors import ConfigError
from agentrl.slime.host import HostArgs
from agentrl.slime.sample import BRANCH_KEY, episode_metadata
from agentrl.types import StopReason


def is_valid(sample: Any) -> bool:
    """Whether the episode neither failed nor was aborted. Only the reward of such an episode depends on the policy.

    `sample.remove_sample` does not decide this: slime's own filters set it to remove a sample from the loss only.
    """
    return episode_metadata(sample).get("stop") not in (StopReason.FAILED, StopReason.ABORTED)


def flat_samples(samples: Any) -> Iterator[Any]:
    """The Samples in nested lists. An episode with several samples (a fan-out) is a list in the place of a Sample."""
    if isinstance(samples, list):
        for item in samples:
            yield from flat_samples(item)
    else:
        yield samples


def by_prompt(samples: Iterable[Any]) -> dict[int | None, list[Any]]:
    """`group_index` -> the samples of a prompt."""
    prompts: dict[int | None, list[Any]] = {}
    for sample in samples:
        prompts.setdefault(sample.group_index, []).append(sample)
    return prompts


def by_rollout(samples: Iterable[Any], *, branches: bool = False) -> list[list[Any]]:
    """Group the samples of a prompt by rollout. The samples of a rollout are siblings; most rollouts have a single
    sample.

    Siblings share a `rollout_id`. If the id is None or missing, as in miles, the `index` replaces the id
    (slime/utils/types.py:98). A sample without both counts as a rollout. Each seat of an episode counts as a rollout.
    With `branches`, each rewarded branch of an agent's session counts as a rollout, too.
    """
    rollouts: dict[Any, list[Any]] = {}
    for sample in samples:
        name = getattr(sample, "rollout_id", None)
        name = sample.index if name is None else name
        name = ("unnamed", id(sample)) if name is None else (name, seat_of(sample))
        name = (name, branch_of(sample)) if branches else name
        rollouts.setdefault(name, []).append(sample)
    return list(rollouts.values())


def seat_of(sample: Any) -> str:
    """The seat that a sample belongs to. "" for an Env without seats."""
    return str(episode_metadata(sample).get("seat", ""))


def branch_of(sample: Any) -> str:
    """The name of the branch that an agent's `score` rewarded with this sample's reward. "" for the main conversation,
    and without branches."""
    return str(episode_metadata(sample).get(BRANCH_KEY, ""))


def reward_of(flags: HostArgs, sample: Any, *, evaluation: bool = False) -> float:
    """The number in `sample.reward`, under --reward-key if set. Raises ConfigError without a number."""
    key, value = flags.reward_name(evaluation=evaluation), sample.reward
    try:
        number = float(value[key] if key else value)
    except ConfigError:  # from NoReward: the run ends here
        raise
    except (TypeError, ValueError, KeyError):
        number = math.nan
    if not math.isfinite(number):
        raise ConfigError(
            f"the reward of sample {sample.index} is {value!r:.200}, which holds no finite number"
            + (f" under --reward-key {key}" if key else "; a mapping needs --reward-key")
        )
    return number
