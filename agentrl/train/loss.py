"""The arithmetic of policy optimisation: pure functions on tensors.

GRPO (arXiv 2402.03300): a reward is judged against its group, which replaces a value function. Dr.GRPO
(arXiv 2503.20783) leaves out the division by the group's deviation and by the response's length, both of which weigh
questions and answers unequally. Clip-higher and the mean over tokens are DAPO's (arXiv 2503.14476).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere
from torch import Tensor

_EPSILON = 1e-6
"""Keeps a small deviation from dividing by nothing; as in slime."""


@dataclass(frozen=True, slots=True)
class Advantages:
    values: Tensor
    """[groups, group_size]; 0 where not valid."""
    informative: Tensor
    """[groups], bool: the rewards differ, so there is something to learn from."""


def group_advantages(rewards: Tensor, valid: Tensor, kind: Literal["grpo", "dr_grpo"] = "grpo") -> Advantages:
    """Rewards [groups, group_size] against the mean (and for grpo the deviation) of their group's valid members.

    Members that are not `valid` neither count in the baseline nor get an advantage.
    """
    count = valid.sum(1, keepdim=True)
    mean = (rewards * valid).sum(1, keepdim=True) / count.clamp(min=1)
    centred = torch.where(valid, rewards - mean, 0.0)
    informative = ((rewards != _first_valid(rewards, valid)) & valid).any(1)
    if kind == "grpo":
        deviation = (centred.square().sum(1, keepdim=True) / (count - 1).clamp(min=1)).sqrt()
        centred = centred / (deviation + _EPSILON)
    # Equal rewards whose mean is rounded would leave dust, which the deviation then blows up.
    return Advantages(torch.where(informative[:, None], centred, 0.0), informative)


def token_log_probs(logits: Tensor, targets: Tensor, temperature: float = 1.0) -> Tensor:
    """Log-probs [n] of `targets` [n] under `logits` [n, vocabulary] at a sampling temperature, in float32."""
    return -F.cross_entropy(logits.float() / temperature, targets, reduction="none")


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    loss: Tensor
    """Summed over the tokens: divide by the whole minibatch's normaliser, so that micro-batches add up."""
    clipped: int
    """Tokens whose ratio was clipped, so that they have no gradient."""


def policy_loss(
    log_probs: Tensor, rollout_log_probs: Tensor, advantages: Tensor, *, clip_low: float = 0.2, clip_high: float = 0.28
) -> PolicyLoss:
    """The clipped surrogate against the probabilities the tokens were sampled with; all three are [n]."""
    ratio = (log_probs - rollout_log_probs).exp()
    unclipped = ratio * advantages
    bounded = ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
    return PolicyLoss(-torch.min(unclipped, bounded).sum(), int((bounded < unclipped).sum()))


def kl_k3(log_probs: Tensor, reference_log_probs: Tensor) -> Tensor:
    """KL(policy || reference) [n], estimated on tokens of the policy: unbiased and never negative (Schulman's k3)."""
    difference = reference_log_probs - log_probs
    return difference.exp() - difference - 1


def _first_valid(rewards: Tensor, valid: Tensor) -> Tensor:
    return rewards.gather(1, valid.int().argmax(1, keepdim=True))
