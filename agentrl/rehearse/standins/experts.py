"""The linear layers of all experts of a rank, with TransformerEngine's parameter names: weight0, weight1, ...

Serves TEColumnParallelGroupedLinear and TERowParallelGroupedLinear of megatron/core/extensions/transformer_engine.py.
Imports Megatron.
"""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.tensor_parallel.layers import set_tensor_model_parallel_attributes
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint


class _Experts(torch.nn.Module):
    axis: int
    """The axis of a weight, (output, input), that the tensor-parallel ranks share."""

    def __init__(
        self,
        num_gemms: int,
        input_size: int,
        output_size: int,
        *,
        config: Any,
        init_method: Any,
        bias: bool,
        pg_collection: Any,
        **_: Any,
    ) -> None:
        super().__init__()
        if bias:
            raise NotImplementedError("the rehearsal has no experts with a bias")
        self.num_gemms, self._groups = num_gemms, pg_collection
        ranks = pg_collection.expt_tp.size()
        shape = [output_size, input_size]
        shape[self.axis] //= ranks
        for expert in range(num_gemms):
            weight = torch.nn.Parameter(torch.empty(shape, dtype=config.params_dtype))
            if config.perform_initialization:
                init_method(weight)
            set_tensor_model_parallel_attributes(weight, ranks > 1, self.axis, 1)
            weight.allreduce = config.expert_model_parallel_size == 1  # type: ignore[attr-defined]
            self.register_parameter(f"weight{expert}", weight)

    def forward(self, tokens: torch.Tensor, counts: list[int]) -> tuple[torch.Tensor, None]:
        """Apply expert i to the next `counts[i]` tokens. `tokens` is (tokens, input)."""
        parts = torch.split(tokens, counts)
        weights = (getattr(self, f"weight{expert}") for expert in range(self.num_gemms))
        outputs = [torch.nn.functional.linear(part, weight) for part, weight in zip(parts, weights, strict=True)]
        return torch.cat(outputs), None

    def sharded_state_dict(self, prefix: str = "", sharded_offsets: Any = (), metadata: Any = None) -> dict[str, Any]:
        """The weights as shards of Megatron's checkpoint, under the names that SequentialMLP has."""
        groups, shards = self._groups, {}
        total, first = groups.ep.size() * self.num_gemms, groups.ep.rank() * self.num_gemms
        for expert in range(self.num_gemms):
            sharded = make_sharded_tensors_for_checkpoint(
                {"weight": getattr(self, f"weight{expert}")},
                prefix,
                {"weight": self.axis},
                (*sharded_offsets, (len(sharded_offsets), first + expert, total)),
                tp_group=groups.expt_tp,
                dp_cp_group=metadata["dp_cp_group"],
            )
            shard = sharded[f"{prefix}weight"]
            shard.replica_id = (*shard.replica_id[:2], groups.expt_dp.rank())
            shards[f"{prefix}weight{expert}"] = shard
        return shards


class ColumnParallelExperts(_Experts):
    """Tensor-parallel ranks share the outputs."""

    axis = 0


class RowParallelExperts(_Experts):
    """Tensor-parallel ranks share the inputs; the token dispatcher sums the outputs."""

    axis = 1
