"""The formulas once more, one token at a time, in plain Python and as the papers write them.

Shares no code with agentrl. Each sample is one sequence; its lists hold the trained tokens alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class Sample:
    new: list[float]
    """Log-probs under the weights being trained."""
    old: list[float]
    """Under the weights that the ratio is taken against."""
    advantages: list[float]
    engine: list[float] = field(default_factory=list)
    """As sampled, where TIS is asked for."""
    reference: list[float] = field(default_factory=list)


def advantages(rewards: Sequence[float], *, deviation: bool = True) -> list[float]:
    """GRPO, eq. 3 and section 4.1.2 of arXiv 2402.03300; Dr.GRPO (arXiv 2503.20783, section 3.2) does not divide."""
    mean = sum(rewards) / len(rewards)
    variance = sum((r - mean) ** 2 for r in rewards) / (len(rewards) - 1)
    return [(r - mean) / (math.sqrt(variance) + 1e-6 if deviation else 1.0) for r in rewards]


def surrogate(
    ratio: float, advantage: float, *, clip_low: float, clip_high: float, dual_clip: float | None = None
) -> float:
    """PPO's objective of one token; eq. 5 of arXiv 1912.09729 for the dual clip."""
    bounded = min(max(ratio, 1 - clip_low), 1 + clip_high)
    value = min(ratio * advantage, bounded * advantage)
    return max(value, dual_clip * advantage) if dual_clip is not None and advantage < 0 else value


def log_ratios(sample: Sample, *, sequence: bool) -> list[float]:
    """Of each token; or the sequence's, eq. 7 of arXiv 2507.18071, at every token."""
    found = [new - old for new, old in zip(sample.new, sample.old, strict=True)]
    return [sum(found) / len(found) for _ in found] if sequence else found


def kl(new: float, reference: float, kind: str) -> float:
    """The estimators of joschu.net/blog/kl-approx.html, where r is reference over policy."""
    log_r = reference - new
    if kind == "k1":
        return -log_r
    if kind == "k2":
        return log_r**2 / 2
    k3 = (math.exp(log_r) - 1) - log_r
    return min(max(k3, -10.0), 10.0) if kind == "low_var_kl" else k3


def losses(
    sample: Sample,
    *,
    sequence: bool = False,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    dual_clip: float | None = None,
    tis_clip: float | None = None,
    kl_coef: float = 0.0,
    kl_type: str = "k3",
) -> list[float]:
    """The loss of each token of a sample."""
    found = []
    for i, log_ratio in enumerate(log_ratios(sample, sequence=sequence)):
        clips = {"clip_low": clip_low, "clip_high": clip_high, "dual_clip": dual_clip}
        loss = -surrogate(math.exp(log_ratio), sample.advantages[i], **clips)
        if tis_clip is not None:
            loss *= min(math.exp(sample.old[i] - sample.engine[i]), tis_clip)
        if kl_coef:
            loss += kl_coef * kl(sample.new[i], sample.reference[i], kl_type)
        found.append(loss)
    return found


def mean_loss(samples: Sequence[Sample], reduction: str, *, length: int = 1, **options) -> float:
    """token: over all tokens (DAPO, arXiv 2503.14476, eq. 8). sample: over the tokens of each, then over samples, as
    GRPO has it. constant: the sum by samples times a length that is the same for all (Dr.GRPO)."""
    per_sample = [losses(sample, **options) for sample in samples]
    if reduction == "token":
        return sum(map(sum, per_sample)) / sum(map(len, per_sample))
    if reduction == "sample":
        return sum(sum(found) / len(found) for found in per_sample if found) / len(per_sample)
    return sum(map(sum, per_sample)) / (len(per_sample) * length)
