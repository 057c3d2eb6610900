"""Rewards under slime: the hook for slime's reward model, and the hook that subtracts baselines."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from agentrl.errors import ConfigError
from agentrl.slime.host import ESTIMATORS, HostArgs
from agentrl.slime.rollouts import branch_of, by_prompt, by_rollout, is_valid, reward_of, seat_of
from agentrl.slime.sample import EPISODE_REWARD_KEY, episode_metadata, reward_aside
from agentrl.trajectory.trajectory import role_of
from agentrl.types import JSON

log = logging.getLogger("agentrl")

_EPSILON = 1e-6


async def reward(args: Any, sample: Any, **kwargs: Any) -> JSON:
    """--custom-rm-path: the reward from the Env or from the configured reward function.

    For a list (a batch, or under --group-rm a group) the result has the same nesting. Under --group-rm slime overwrites
    `sample.reward` with the result, so with this hook every sample keeps its reward.

    An episode without a score gets 0, as without this hook, and a warning is logged once. Such episodes are possible if
    an Env rewards only steps. Raises ConfigError for a sample that no Env played.
    """
    if isinstance(sample, list):
        return [await reward(args, member, **kwargs) for member in sample]
    if (value := reward_aside(sample) if sample.reward is None else sample.reward) is not None:
        return value
    if not episode_metadata(sample):
        raise ConfigError(
            f"sample {sample.index} has no reward for agentrl.slime.reward to return: no Env played it; use "
            "--custom-generate-function-path agentrl.adapt, or another --custom-rm-path"
        )
    _warn_unscored()
    key = HostArgs.of(args).reward_name(evaluation=sample.group_index is None)  # slime numbers no groups in evaluation
    return {key: 0.0} if key else 0.0


@cache
def _warn_unscored() -> None:
    log.warning("an episode has no reward from Env.score, a step or `reward`, and agentrl.slime.reward makes it 0")


def post_process_rewards(args: Any, samples: Sequence[Any]) -> tuple[list[float], list[float]]:
    """--custom-reward-post-process-path: the raw rewards, and the rewards relative to their baseline.

    Both lists have a number for each sample. slime calls this hook in place of its own baseline, for every estimator
    (ray/rollout.py:608; data/batch_builder.py in 0.4). With groups of equal size and no failures the result is slime's
    own. GRPO, GSPO, CISPO and REINFORCE++ with a baseline subtract the mean of the prompt's rewards; the first three
    divide the rest by their standard deviation (n - 1) + 1e-6, if the flags ask for it. FlashREINFORCE subtracts the
    mean of the batch. PPO and REINFORCE++ take the rewards unchanged.

    Two things differ from slime. First, prompts are identified by `group_index`, and each rollout counts once, with any
    number of samples; slime treats uneven groups as a single group. (If the branches of an agent's session have
    rewards, each branch counts once, and is compared with the branches of its role.) Second, an episode that was
    aborted, or that failed because of the environment or a bug, neither counts nor gets an advantage: the policy did
    not cause its 0.0. Its raw reward is 0, even if a reward model of --group-rm has set another value.

    Raises ConfigError for an unknown estimator, for a reward that is not a finite number, and for a sample without a
    group_index, where prompts have baselines.
    """
    flags = HostArgs.of(args)
    if flags.rewards_normalization and flags.advantage_estimator not in ESTIMATORS:
        raise ConfigError(
            f"--advantage-estimator {flags.advantage_estimator!r} is unknown to agentrl.slime.post_process_rewards, "
            f"which knows {', '.join(ESTIMATORS)}; remove --custom-reward-post-process-path, and slime computes the "
            "baseline"
        )
    rewards = [reward_of(flags, sample) for sample in samples]
    raw = [value if is_valid(sample) else 0.0 for sample, value in zip(samples, rewards, strict=True)]
    if not flags.centred and not flags.batch_centred:
        return raw, list(raw)
    baselines = _baselines(flags, samples)
    return raw, [
        baselines[sample.group_index, *_compared(sample)].advantage(value) if is_valid(sample) else 0.0
        for sample, value in zip(samples, raw, strict=True)
    ]


def _baselines(flags: HostArgs, samples: Sequence[Any]) -> dict[tuple[int | None, str, str], _Baseline]:
    """(group_index, seat, role) -> the baseline."""
    compared: dict[tuple[str, str], list[Any]] = {}
    for sample in samples:
        compared.setdefault(_compared(sample), []).append(sample)
    return {
        (index, *key): baseline
        for key, members in compared.items()
        for index, baseline in _of_one_role(flags, members).items()
    }


def _compared(sample: Any) -> tuple[str, str]:
    """The seat and the role of a sample. Only samples with the same seat and the same role are compared."""
    return seat_of(sample), role_of(branch_of(sample))


def _of_one_role(flags: HostArgs, samples: Sequence[Any]) -> dict[int | None, _Baseline]:
    prompts = by_prompt(samples)
    if flags.batch_centred:
        batch = _Baseline.of(flags, [reward for group in prompts.values() for reward in _branch_rewards(flags, group)])
        return dict.fromkeys(prompts, batch)
    if None in prompts:
        raise ConfigError(
            f"sample {prompts[None][0].index} has no group_index, and agentrl.slime.post_process_rewards needs it to "
            "tell prompts apart; your --data-source-path or --rollout-function-path must set it"
        )
    return {index: _Baseline.of(flags, _branch_rewards(flags, group)) for index, group in prompts.items()}


@dataclass(frozen=True, slots=True)
class _Baseline:
    """The mean of the rewards of a prompt or of a batch, and the divisor of the differences from the mean."""

    mean: float = 0.0
    scale: float = 1.0

    @classmethod
    def of(cls, flags: HostArgs, values: Sequence[float]) -> _Baseline:
        if not values:
            return cls()
        # `statistics` is exact: equal rewards have a deviation of exactly 0, so rounding errors are not amplified.
        scale = statistics.stdev(values) + _EPSILON if flags.scaled and len(values) > 1 else 1.0
        return cls(statistics.mean(values), scale)

    def advantage(self, value: float) -> float:
        return (value - self.mean) / self.scale


def rollout_rewards(args: Any, samples: Sequence[Any], *, evaluation: bool = False) -> list[float]:
    """The reward of each valid rollout of a prompt. A rollout with several samples (a fan-out) has the mean of their
    rewards, or the agent's `score` of the whole episode."""
    valid = [sample for sample in samples if is_valid(sample)]
    of_episodes = [episode_metadata(siblings[-1]).get(EPISODE_REWARD_KEY) for siblings in by_rollout(valid)]
    means = _means(HostArgs.of(args), by_rollout(valid), evaluation=evaluation)
    return [
        mean if episode_reward is None else float(episode_reward)
        for episode_reward, mean in zip(of_episodes, means, strict=True)
    ]


def rewards_by_role(args: Any, samples: Sequence[Any]) -> dict[str, list[float]]:
    """Role -> the comparable rewards of a prompt: a reward for each valid rollout, or for each of its branches."""
    roles: dict[str, list[Any]] = {}
    for sample in filter(is_valid, samples):
        roles.setdefault(role_of(branch_of(sample)), []).append(sample)
    flags = HostArgs.of(args)
    return {role: _branch_rewards(flags, members) for role, members in roles.items()}


def _branch_rewards(flags: HostArgs, samples: Sequence[Any]) -> list[float]:
    """A reward for each valid rollout, or for each branch that has a reward."""
    return _means(flags, by_rollout(filter(is_valid, samples), branches=True))


def _means(flags: HostArgs, rollouts: Sequence[Sequence[Any]], *, evaluation: bool = False) -> list[float]:
    return [
        statistics.mean(reward_of(flags, sample, evaluation=evaluation) for sample in siblings) for siblings in rollouts
    ]
