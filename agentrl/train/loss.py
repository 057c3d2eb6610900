"""The arithmetic of policy optimisation: pure functions on tensors.

    GRPO       arXiv 2402.03300  a reward is judged against its group, which replaces a value function
    Dr.GRPO    arXiv 2503.20783  without the division by the group's deviation and by the response's length
    GSPO       arXiv 2507.18071  one ratio for a whole sequence, the geometric mean of its tokens'
    DAPO       arXiv 2503.14476  clip-higher; the mean over all tokens; overlong episodes masked
    dual clip  arXiv 1912.09729  a bound on the loss of bad tokens that have become likely
    MT-GRPO    arXiv 2505.11821  credit for each turn
    FlashREINFORCE (yifanzhang-pro.github.io/FlashREINFORCE): one episode a prompt, judged against the whole batch
    TIS        fengyao.notion.site/off-policy-rl: weights that correct the difference of engine and trainer
    AReaL      arXiv 2505.24298: with TIS, the decoupled objective, whose clip is around the weights before the update
    k1, k2, k3 joschu.net/blog/kl-approx.html

Signs, names and corner cases are those of slime (slime/utils/ppo_utils.py, backends/megatron_utils/loss.py).
tests/parity compares them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere
from torch import Tensor

from agentrl.train.config import Algorithm, KLType

_EPSILON = 1e-6
"""Added to divisors, so that no division by zero occurs; as in slime."""
_DUST = 1e-12
"""The relative difference below which two rewards are equal, such as 0.1 + 0.2 and 0.3."""
_UNSCALED = ("dr_grpo", "flash_reinforce")
"""The algorithms that do not divide by the standard deviation of the rewards."""
_MOST_KL = 10.0
"""The largest value of low_var_kl, which is a clamped k3, as in slime."""


@dataclass(frozen=True, slots=True)
class Advantages:
    values: Tensor
    """The advantages [groups, group_size], or [groups, group_size, turns]; 0 for members that are not valid."""
    informative: Tensor
    """Bool tensor [groups]: whether the rewards of a group differ. Equal rewards teach nothing."""
    scale: Tensor
    """The divisor [groups, 1] of the differences from the mean reward."""


def group_advantages(rewards: Tensor, valid: Tensor, algorithm: Algorithm = "grpo") -> Advantages:
    """Rewards [groups, group_size] less the mean of their group's valid members. The differences are divided by the
    group's standard deviation, unless the algorithm is dr_grpo or flash_reinforce.

    Members that are not `valid` neither count in the baseline nor get an advantage. For a baseline of the whole batch,
    pass the batch as a single group.
    """
    centred = _centred(rewards, valid)
    first = _first_valid(rewards, valid)
    apart = (rewards - first).abs() > _DUST * torch.maximum(rewards.abs(), first.abs())
    informative = (apart & valid).any(1)
    scale = torch.ones_like(centred[:, :1])
    if algorithm not in _UNSCALED:
        others = (valid.sum(1, keepdim=True) - 1).clamp(min=1)
        scale = (centred.square().sum(1, keepdim=True) / others).sqrt() + _EPSILON
    # Rounding the mean of equal rewards leaves tiny differences, which dividing by the deviation would enlarge.
    return Advantages(torch.where(informative[:, None], centred / scale, 0.0), informative, scale)


def turn_advantages(advantages: Advantages, earned: Tensor, valid: Tensor, algorithm: Algorithm = "grpo") -> Tensor:
    """Advantages [groups, group_size, turns]: the rewards since a turn began, compared within the group.

    `earned` [groups, group_size, turns] are the rewards before each turn, which the turn cannot have caused. The
    computation is MT-GRPO with a lambda of 1, undiscounted, for any number of turns, with a single difference: a group
    has a single divisor, the largest among the standard deviation of the total rewards and those of `earned` at each
    turn. So a small bonus stays small, and so do outcomes that hardly differ. A group with equal total rewards teaches
    nothing.
    """
    before = _centred(earned, valid[..., None])
    scale = advantages.scale
    if algorithm not in _UNSCALED:
        others = (valid.sum(1, keepdim=True) - 1).clamp(min=1)
        scale = torch.maximum(scale, (before.square().sum(1) / others).sqrt().amax(1, keepdim=True))
    after = ((advantages.values * advantages.scale)[..., None] - before) / scale[..., None]
    return torch.where(advantages.informative[:, None, None], after, 0.0)


def return_advantages(returns: Tensor, taken: Tensor, algorithm: Algorithm = "grpo") -> Advantages:
    """Advantages [groups, group_size, turns] of the `returns` from each turn on, compared with the value of the turn.

    The value is the mean return of the members that took the turn (`taken`, bool). These members are samples of the
    future of a turn of this number, so no value function is needed. A turn that a single member took is compared with
    the whole group, whose other members earn 0 from this turn on. The advantages are divided by the standard deviation
    of all the group's turns, unless the algorithm is dr_grpo or flash_reinforce. A group whose members differ at no
    turn teaches nothing.
    """
    zeroed = torch.where(taken, returns, 0.0)
    count, members = taken.sum(1, keepdim=True), taken.any(2).sum(1)[:, None, None].clamp(min=1)
    value = zeroed.sum(1, keepdim=True) / torch.where(count > 1, count, members)
    centred = torch.where(taken, zeroed - value, 0.0)
    informative = (centred.abs() > _DUST * zeroed.abs().amax((1, 2), keepdim=True)).any(2).any(1)
    scale = torch.ones_like(centred[:, :1, 0])
    if algorithm not in _UNSCALED:
        others = (taken.sum((1, 2)) - 1).clamp(min=1)[:, None]
        scale = (centred.square().sum((1, 2))[:, None] / others).sqrt() + _EPSILON
    return Advantages(torch.where(informative[:, None, None], centred / scale[..., None], 0.0), informative, scale)


def token_log_probs(
    logits: Tensor, targets: Tensor, temperature: float = 1.0, forbidden: Tensor | None = None
) -> Tensor:
    """Log-probs [n] of the token ids `targets` [n] under `logits` [n, vocabulary] at a sampling temperature, in
    float32.

    The ids `forbidden` are never sampled: the softmax leaves these tokens out.
    """
    scaled = logits.float() if temperature == 1 else logits.float() / temperature
    if forbidden is not None:
        scaled = scaled.index_fill(1, forbidden, -torch.inf)
    return -F.cross_entropy(scaled, targets, reduction="none")


def sequence_log_ratio(log_ratio: Tensor, row: Tensor) -> Tensor:
    """For each token [n], the mean of `log_ratio` [n] over the tokens of the same row. `row` [n] has the row of each
    token."""
    tokens = torch.bincount(row)
    return (log_ratio.new_zeros(len(tokens)).index_add(0, row, log_ratio) / tokens)[row]


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    losses: Tensor
    """The loss [n] of each token. The caller averages."""
    clipped: int
    """The number of tokens without a gradient, because their ratio was clipped."""


def policy_loss(
    log_ratio: Tensor,
    advantages: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    dual_clip: float | None = None,
) -> PolicyLoss:
    """PPO's clipped surrogate loss. `log_ratio` [n] is the log of the new probability divided by the old probability,
    of tokens or of sequences.

    If the advantage of a token is negative, its loss is at most `dual_clip` times the size of the advantage.
    """
    ratio = log_ratio.exp()
    unclipped = ratio * advantages
    surrogate = torch.min(unclipped, ratio.clamp(1 - clip_low, 1 + clip_high) * advantages)
    if dual_clip is not None:
        surrogate = torch.where(advantages < 0, torch.max(surrogate, dual_clip * advantages), surrogate)
    return PolicyLoss(-surrogate, int((surrogate != unclipped).sum()))


def tis_weights(trainer_log_probs: Tensor, engine_log_probs: Tensor, clip: float) -> Tensor:
    """The weights of truncated importance sampling: for each sampled token [n], the trainer's probability divided by
    the engine's, at most `clip`."""
    return (trainer_log_probs - engine_log_probs).exp().clamp(max=clip)


def kl_divergence(log_probs: Tensor, reference_log_probs: Tensor, kind: KLType = "k3") -> Tensor:
    """The estimates [n] of KL(policy || reference), at tokens that the policy sampled.

    k1 and k3 are unbiased; k2 and k3 are never negative. Do not use k1 as a loss: its gradient is zero on average.
    """
    difference = reference_log_probs - log_probs
    if kind == "k1":
        return -difference
    if kind == "k2":
        return difference.square() / 2
    k3 = difference.exp() - difference - 1
    return k3.clamp(-_MOST_KL, _MOST_KL) if kind == "low_var_kl" else k3


def _centred(rewards: Tensor, valid: Tensor) -> Tensor:
    """Rewards less the mean over their group's valid members (dimension 1); 0 where not valid."""
    mean = (rewards * valid).sum(1, keepdim=True) / valid.sum(1, keepdim=True).clamp(min=1)
    return torch.where(valid, rewards - mean, 0.0)


def _first_valid(rewards: Tensor, valid: Tensor) -> Tensor:
    return rewards.gather(1, valid.int().argmax(1, keepdim=True))
