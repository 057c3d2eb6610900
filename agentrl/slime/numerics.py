"""Compares the log-probs of slime's engines and trainer. The loss has both log-probs of each token."""

from __future__ import annotations

import logging
from functools import cache
from typing import TYPE_CHECKING, Any

from agentrl.monitor.numerics import NumericsConfig, NumericsWatch
from agentrl.slime.config import SlimeConfig
from agentrl.slime.host import HostArgs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

log = logging.getLogger("agentrl")


def watch_log_probs(
    args: Any,
    *,
    pg_loss: Tensor,
    train_log_probs: Sequence[Tensor],
    rollout_log_probs: Sequence[Tensor],
    loss_masks: Sequence[Tensor],
    **_: Any,
) -> tuple[Tensor, Sequence[Tensor], dict[str, Tensor]]:
    """--custom-tis-function-path, with --get-mismatch-metrics or --use-tis: compare trainer and engine.

    Adds the metrics `logprob_diff` (|trainer's - engine's log-prob|, nats) and `logprob_clipped` (whether the ratio is
    outside the clipping range) of each trained token. The mean difference of a micro-batch is compared with the key
    `numerics` of the configuration: the first excess logs a warning on each rank, a large excess raises CanaryError.

    With --use-tis the loss is weighted as in slime (megatron_utils/loss.py:884). Without it the loss is not changed.
    slime's own function would weight the loss even if only the metrics were requested.
    """
    import torch  # the hook runs in the trainer, which has torch

    flags = HostArgs.of(args)
    trainer, engine = torch.cat(list(train_log_probs)), torch.cat(list(rollout_log_probs))
    ratio = (trainer - engine).exp()
    # Under context parallelism masks cover whole responses, log-probs only a part. Unsampled tokens have log-prob 0.0.
    masks = torch.cat(list(loss_masks)).to(engine.device)
    trained = masks.bool() if len(masks) == len(engine) else engine != 0.0
    difference = torch.where(trained, (trainer - engine).abs(), 0.0).detach()
    outside = (ratio < 1 - flags.eps_clip) | (ratio > 1 + flags.eps_clip_high)
    metrics = {"logprob_diff": difference, "logprob_clipped": (outside & trained).to(ratio.dtype)}
    if trained.any():
        mean, largest = (difference.sum() / trained.sum()).item(), difference.max().item()
        for warning in _watch(SlimeConfig.from_args(args).numerics).watch("a micro-batch", mean, largest):
            log.warning(warning)
    if flags.use_tis:
        pg_loss = pg_loss * ratio.clamp(min=flags.tis_clip_low, max=flags.tis_clip)
    return pg_loss, list(loss_masks), metrics


@cache
def _watch(config: NumericsConfig) -> NumericsWatch:
    """The watch of this process, which is a rank of a run. The watch decides about warnings and errors."""
    return NumericsWatch(config)
