"""Megatron's layers on a CPU, with the parameter names of TransformerEngine's layers. Imports Megatron.

slime/backends/megatron_utils/hf_to_megatron loads, and megatron_to_hf hands over, only parameters with these names.
`TorchSpecProvider` stands in for TESpecProvider in megatron/core/models/gpt/gpt_layer_specs.py, so Megatron itself puts
the layers together.
"""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.models.backends import BackendSpecProvider
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.mlp import MLPSubmodules
from megatron.core.transformer.moe.experts import SequentialMLP, TEGroupedMLP

from agentrl.rehearse.standins import norm
from agentrl.rehearse.standins.attention import Attention
from agentrl.rehearse.standins.experts import ColumnParallelExperts, RowParallelExperts


class NormedColumnParallelLinear(ColumnParallelLinear):  # type: ignore[misc]
    """TELayerNormColumnParallelLinear: a norm before a linear layer. Parameters: layer_norm_weight, layer_norm_bias (of
    LayerNorm), weight, bias."""

    def __init__(self, input_size: int, output_size: int, *, config: Any, **options: Any) -> None:
        super().__init__(input_size, output_size, config=config, **options)
        norm.refuse_zero_centered(config)
        self.eps = config.layernorm_epsilon
        self.layer_norm_weight = norm.parameter(input_size, 1.0, config)
        bias = norm.parameter(input_size, 0.0, config) if config.normalization == "LayerNorm" else None
        self.register_parameter("layer_norm_bias", bias)

    def forward(self, input_: torch.Tensor, *args: Any, **options: Any) -> Any:
        hidden = norm.normalized(input_, self.layer_norm_weight, self.layer_norm_bias, self.eps)
        return super().forward(hidden, *args, **options)


class Linear(torch.nn.Module):
    """TELinear with `parallel_mode="duplicated"`: the same layer on each rank, for multi-head latent attention."""

    def __init__(
        self, input_size: int, output_size: int, *, config: Any, init_method: Any, bias: bool, **_: Any
    ) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(output_size, input_size, dtype=config.params_dtype))
        if config.perform_initialization:
            init_method(self.weight)
        self.bias = torch.nn.Parameter(torch.zeros(output_size, dtype=config.params_dtype)) if bias else None
        for parameter in self.parameters():
            parameter.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, hidden: torch.Tensor) -> tuple[torch.Tensor, None]:
        return torch.nn.functional.linear(hidden, self.weight, self.bias), None


class TorchSpecProvider(BackendSpecProvider):  # type: ignore[misc]
    """Names the layers above to Megatron's functions that build a model."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()

    def linear(self) -> type:
        return Linear

    def column_parallel_linear(self) -> type:
        return ColumnParallelLinear  # type: ignore[no-any-return]

    def row_parallel_linear(self) -> type:
        return RowParallelLinear  # type: ignore[no-any-return]

    def fuse_layernorm_and_linear(self) -> bool:
        return True

    def column_parallel_layer_norm_linear(self) -> type:
        return NormedColumnParallelLinear

    def layer_norm(self, rms_norm: bool = False, for_qk: bool = False, **_: Any) -> type:
        return norm.Norm

    def core_attention(self) -> type:
        return Attention

    def grouped_mlp_modules(self, moe_use_grouped_gemm: bool, *_: Any) -> tuple[type, Any]:
        if moe_use_grouped_gemm:
            return TEGroupedMLP, MLPSubmodules(linear_fc1=ColumnParallelExperts, linear_fc2=RowParallelExperts)
        return SequentialMLP, MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear)

    def activation_func(self) -> None:
        return None
