"""Causal attention in torch, for packed sequences and for batches. Serves TEDotProductAttention of
megatron/core/extensions/transformer_engine.py. Imports Megatron."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from megatron.core.transformer.module import MegatronModule


class Attention(MegatronModule):  # type: ignore[misc]
    """Attention of each sequence to itself. Has no parameters."""

    def __init__(
        self, config: Any, layer_number: int, *_: Any, softmax_scale: float | None = None, **options: Any
    ) -> None:
        super().__init__(config=config)
        if getattr(config, "window_size", None) or getattr(config, "softmax_type", "vanilla") != "vanilla":
            raise NotImplementedError("the rehearsal has no attention with a window or with sinks")
        self.softmax_scale = softmax_scale

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: Any,
        *_: Any,
        packed_seq_params: Any = None,
        **__: Any,
    ) -> torch.Tensor:
        """Attention of packed sequences, (tokens, heads, width) each, or of a batch, (tokens, batch, heads, width).

        Returns (tokens, heads * width), or (tokens, batch, heads * width).
        """
        if packed_seq_params is None:
            query, key, value = (tensor.permute(1, 2, 0, 3) for tensor in (query, key, value))
            return self._attend(query, key, value).permute(2, 0, 1, 3).flatten(2)
        outputs = []
        for start, end in pairwise(packed_seq_params.cu_seqlens_q.tolist()):
            sequence = (tensor[start:end].transpose(0, 1)[None] for tensor in (query, key, value))
            outputs.append(self._attend(*sequence)[0].transpose(0, 1))
        return torch.cat(outputs).flatten(1)

    def _attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """(batch, heads, tokens, width) each."""
        return torch.nn.functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=self.softmax_scale, enable_gqa=query.size(1) != key.size(1)
        )
