"""Whether engine and trainer agree. Each step compares the log-probs of both for the same tokens.

Engine and trainer should give a freshly sampled token the same log-prob. A difference acts as if the policy had changed
before the first update. A wrong temperature, a mask shifted by a token, or stale weights show up here first, and much
later in the reward. The module needs no torch, so a hook under slime can use the comparison, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field

from agentrl.errors import CanaryError


@dataclass(frozen=True, slots=True)
class Numerics:
    """The differences |trainer's log-prob - engine's log-prob| over sampled tokens, in nats. Two objects can be
    added."""

    tokens: int = 0
    total: float = 0.0
    max: float = 0.0
    clipped: int = 0
    """The number of tokens whose ratio of probabilities is outside the usual clipping range."""

    @property
    def mean(self) -> float:
        return self.total / max(self.tokens, 1)

    @property
    def clipped_share(self) -> float:
        return self.clipped / max(self.tokens, 1)

    def __add__(self, other: Numerics) -> Numerics:
        return Numerics(
            self.tokens + other.tokens,
            self.total + other.total,
            max(self.max, other.max),
            self.clipped + other.clipped,
        )


def compare(
    engine: Iterable[float],
    trainer: Iterable[float],
    loss_mask: Iterable[int] | None = None,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
) -> Numerics:
    """Compare the log-probs of engine and trainer for each token; with `loss_mask`, only for tokens whose mask is 1. If
    a log-prob is not finite, the difference is infinite.

    Raises ValueError if the arguments have different lengths.
    """
    pairs = list(zip(engine, trainer, strict=True))
    if loss_mask is not None:
        pairs = [pair for pair, mask in zip(pairs, loss_mask, strict=True) if mask]
    lowest = math.log(1 - clip_low) if clip_low < 1 else -math.inf
    highest = math.log(1 + clip_high)
    differences = [ours - theirs if math.isfinite(ours - theirs) else math.inf for theirs, ours in pairs]
    sizes = list(map(abs, differences))
    clipped = sum(not lowest <= difference <= highest for difference in differences)
    return Numerics(len(sizes), math.fsum(sizes), max(sizes, default=0.0), clipped)


class NumericsConfig(BaseModel):
    """The limits at which a run warns or stops because engine and trainer disagree. The measure is the mean difference
    of log-probs in a step, in nats."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    warn: float = Field(default=0.02, gt=0)
    """The mean difference above which the run warns, once. In float32 the difference is below 1e-4; in bfloat16 it is
    0.002 for `tiny`, and 0.05 for SmolLM2."""
    stop: float = Field(default=0.5, gt=0)
    """The mean difference above which the run stops. Rounding alone never reaches 0.5; slime's own tests allow 0.1."""


class NumericsWatch:
    """Checks the numerics of a run, in order."""

    def __init__(self, config: NumericsConfig) -> None:
        self._config = config
        self._warned = False

    def watch(self, where: str, mean: float, largest: float) -> list[str]:
        """The warnings about the mean and the largest difference of some tokens. `where` is their place in the text.
        Raises CanaryError above `stop`."""
        message = (
            f"{where}: trainer and engine differ by {mean:.2g} on average over the log-probs of the same tokens "
            f"(at most by {largest:.2g}); do both use the same weights, temperature and dtype?"
        )
        if not mean <= self._config.stop:  # nor NaN
            raise CanaryError(f"{message} (numerics.stop is {self._config.stop:g})")
        if mean <= self._config.warn or self._warned:
            return []
        self._warned = True
        return [f"{message} Where they cannot, tis_clip corrects for it"]
