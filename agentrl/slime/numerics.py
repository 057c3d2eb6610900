"""Do slime's engines and its trainer agree? Looked at where both log-probs of a token are at hand: in the loss."""

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
    """--custom-tis-function-path, with --get-mismatch-metrics or --use-tis: watch trainer and engine disagree.

    Adds the metrics `logprob_diff` (|trainer's - engine's log-prob|, nats) and `logprob_clipped` (is the ratio outside
    the clipping range) of each trained token. Warns once on each rank, and raises CanaryError, by the key `numerics` of
    the configuration, on what a micro-batch differs by on average.

    With --use-tis the loss is weighed as slime does itself (megatron_utils/loss.py:884); otherwise it stays as it is,
    where slime's own function, asked for the metrics alone, would weigh it all the same.
    """
    import torch  # the hook runs in the trainer, which has it

    flags = HostArgs.of(args)
    trainer, engine = torch.cat(list(train_log_probs)), torch.cat(list(rollout_log_probs))
    ratio = (trainer - engine).exp()
    # Under context parallelism masks are of whole responses and log-probs of a part; what nobody sampled carries 0.0.
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
    """Of this process, which is one rank of one run."""
    return NumericsWatch(config)
