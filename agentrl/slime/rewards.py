"""Rewards under slime: handed to its reward model hook, and measured against the right baseline."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from agentrl.errors import ConfigError
from agentrl.slime.host import HostArgs
from agentrl.slime.rollouts import account, by_prompt, by_rollout, is_valid, reward_of
from agentrl.types import JSON

log = logging.getLogger("agentrl")

_EPSILON = 1e-6


async def reward(args: Any, sample: Any, **kwargs: Any) -> JSON:
    """--custom-rm-path: the reward that the Env or the reward function of the configuration gave.

    For a Sample its reward; for a list (slime's batches and, under --group-rm, groups) the list of them, nested as it
    is. slime overwrites `sample.reward` with the result under --group-rm, so this lets every sample keep its own.

    An episode that nobody scored has earned 0, as without this hook, and a warning says so once: an Env that rewards
    steps alone leaves an episode without such a step unscored. Raises ConfigError for a sample that no Env played.
    """
    if isinstance(sample, list):
        return [await reward(args, one, **kwargs) for one in sample]
    if sample.reward is not None:
        return sample.reward
    if not account(sample):
        raise ConfigError(
            f"sample {sample.index} has no reward that agentrl.slime.reward could hand over: no Env played it; use "
            "--custom-generate-function-path agentrl.adapt, or another --custom-rm-path"
        )
    _warn_unscored()
    key = HostArgs.of(args).reward_name(evaluation=sample.group_index is None)  # slime numbers no groups in evaluation
    return {key: 0.0} if key else 0.0


@cache
def _warn_unscored() -> None:
    log.warning("an episode has no reward from Env.score, a step or `reward`, and agentrl.slime.reward makes it 0")


def post_process_rewards(args: Any, samples: Sequence[Any]) -> tuple[list[float], list[float]]:
    """--custom-reward-post-process-path: raw rewards, and rewards against the baseline of their prompt; both [samples].

    As slime's own (ray/rollout.py:608) where each prompt has its samples: for GRPO and its kin the mean of the prompt's
    rewards is taken away, and the rest divided by their standard deviation (n - 1) + 1e-6, as the flags say. Different
    in two ways. Prompts are told apart by `group_index`, each rollout counted once however many samples it fanned out
    into, where slime takes uneven groups for one. And episodes that the environment failed, that had a bug or that were
    aborted neither count nor get an advantage: their 0.0 is no news of the policy.

    Raises ConfigError for a reward that is no finite number, and for a sample without a group_index.
    """
    flags = HostArgs.of(args)
    raw = [reward_of(flags, sample) for sample in samples]
    if not flags.centred:
        return raw, list(raw)
    prompts = by_prompt(samples)
    if None in prompts:
        raise ConfigError(
            f"sample {prompts[None][0].index} has no group_index, by which agentrl.slime.post_process_rewards tells "
            "prompts apart; your --data-source-path or --rollout-function-path must set it"
        )
    baselines = {index: _Baseline.of(flags, group) for index, group in prompts.items()}
    return raw, [
        baselines[sample.group_index].advantage(value) if is_valid(sample) else 0.0
        for sample, value in zip(samples, raw, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class _Baseline:
    """What the rewards of one prompt are measured against."""

    mean: float = 0.0
    scale: float = 1.0

    @classmethod
    def of(cls, flags: HostArgs, group: Sequence[Any]) -> _Baseline:
        values = rollout_rewards(flags, group)
        if not values:
            return cls()
        # `statistics` is exact: equal rewards leave no dust that a deviation of nearly 0 would blow up.
        scale = statistics.stdev(values) + _EPSILON if flags.scaled and len(values) > 1 else 1.0
        return cls(statistics.mean(values), scale)

    def advantage(self, value: float) -> float:
        return (value - self.mean) / self.scale


def rollout_rewards(args: Any, samples: Sequence[Any], *, evaluation: bool = False) -> list[float]:
    """The reward of each rollout of a prompt that counts; of a fan-out the mean of its samples."""
    flags, valid = HostArgs.of(args), [sample for sample in samples if is_valid(sample)]
    return [
        statistics.mean(reward_of(flags, sample, evaluation=evaluation) for sample in siblings)
        for siblings in by_rollout(valid)
    ]
