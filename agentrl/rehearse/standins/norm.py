"""Megatron's norms, in torch. Imports torch, but not Megatron.

Serves megatron/core/transformer/torch_norm.py (WrappedTorchNorm) and megatron/core/extensions/transformer_engine.py
(TENorm).
"""

from __future__ import annotations

from typing import Any

import torch


def normalized(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float) -> torch.Tensor:
    """RMSNorm over the last dimension, or LayerNorm if there is a bias; computed in float32, in the input's type."""
    width, wide = (hidden.shape[-1],), hidden.float()
    if bias is None:
        return torch.nn.functional.rms_norm(wide, width, weight.float(), eps).to(hidden.dtype)
    return torch.nn.functional.layer_norm(wide, width, weight.float(), bias.float(), eps).to(hidden.dtype)


def parameter(size: int, value: float, config: Any) -> torch.nn.Parameter:
    """A parameter of a norm. Megatron sums its gradient over the tensor-parallel ranks if they split the sequence."""
    vector = torch.nn.Parameter(torch.full((size,), value, dtype=config.params_dtype))
    vector.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
    return vector


class Norm(torch.nn.Module):
    """RMSNorm or LayerNorm, as `config.normalization` says."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__()
        refuse_zero_centered(config)
        self.eps = eps
        self.weight = parameter(hidden_size, 1.0, config)
        self.bias = parameter(hidden_size, 0.0, config) if config.normalization == "LayerNorm" else None

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return normalized(hidden, self.weight, self.bias, self.eps)


def refuse_zero_centered(config: Any) -> None:
    """Raises NotImplementedError for norms whose weight is added to 1."""
    if config.layernorm_zero_centered_gamma:
        raise NotImplementedError("the rehearsal has no layers for --apply-layernorm-1p")
