"""The optimizers by name. bitsandbytes is imported only if its own is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer

from agentrl.errors import ConfigError
from agentrl.train.config import OptimizerName

_BETAS = (0.9, 0.95)
_SMALLEST_8BIT = 4096
"""Elements of a tensor from which bitsandbytes keeps its moments in 8 bits."""


def make_adam(name: OptimizerName, parameters: Sequence[Tensor], rate: float) -> Optimizer:
    """AdamW without weight decay. Raises ConfigError if it needs bitsandbytes, and that is missing or does not work."""
    if name == "adamw":
        return AdamW(parameters, rate, _BETAS, weight_decay=0.0, fused=True)
    try:
        from bitsandbytes.optim import AdamW8bit
    except ImportError as exc:
        raise ConfigError(
            f"optimizer: adamw_8bit needs bitsandbytes ({exc}); in agentrl's folder: pip install -e '.[8bit]'"
        ) from exc
    _try_out(AdamW8bit, parameters[0].device)
    made: Optimizer = AdamW8bit(parameters, rate, _BETAS, weight_decay=0.0)
    return made


def _try_out(kind: Any, device: torch.device) -> None:
    """One step of one tensor. bitsandbytes says only then what it cannot do on a device, and a run would be late."""
    tensor = torch.zeros(_SMALLEST_8BIT, device=device)
    tensor.grad = torch.ones_like(tensor)
    try:
        kind([tensor], 1e-3).step()
    except Exception as exc:  # the boundary of bitsandbytes: a kernel that is not there raises anything
        words = " ".join(f"{type(exc).__name__}: {exc}".split())
        raise ConfigError(f"optimizer: adamw_8bit does not work on {device} ({words:.300}); use adamw") from exc
