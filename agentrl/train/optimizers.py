"""The optimizers by name. bitsandbytes is imported only if its own is asked for."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.optim import AdamW, Optimizer

from agentrl.errors import ConfigError
from agentrl.train.config import OptimizerName

_BETAS = (0.9, 0.95)


def make_adam(name: OptimizerName, parameters: Sequence[Tensor], rate: float) -> Optimizer:
    """AdamW without weight decay. Raises ConfigError if bitsandbytes is needed and not installed."""
    if name == "adamw":
        return AdamW(parameters, rate, _BETAS, weight_decay=0.0, fused=True)
    try:
        from bitsandbytes.optim import AdamW8bit
    except ImportError as exc:
        raise ConfigError(
            f"optimizer: adamw_8bit needs bitsandbytes ({exc}); in agentrl's folder: pip install -e '.[8bit]'"
        ) from exc
    made: Optimizer = AdamW8bit(parameters, rate, _BETAS, weight_decay=0.0)
    return made
