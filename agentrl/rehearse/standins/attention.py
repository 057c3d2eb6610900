"""Causal attention in torch, for packed sequences and for batches. Serves TEDotProductAttention of
megatron/core/extensions/transformer_engine.py. Imports Megatron."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
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
        Context-parallel ranks share the tokens of each packed sequence.

        Returns (tokens, heads * width), or (tokens, batch, heads * width).
        """
        if packed_seq_params is None:
            heads_first = (tensor.permute(1, 2, 0, 3) for tensor in (query, key, value))
            return self._attend(heads_first, None).permute(2, 0, 1, 3).flatten(2)
        group = parallel_state.get_context_parallel_group()
        ranks, shares = group.size(), query.size(0)
        if ranks > 1:
            key, value = (gather_from_sequence_parallel_region(tensor, group=group) for tensor in (key, value))
        outputs = []
        for start, end in pairwise((packed_seq_params.cu_seqlens_q // ranks).tolist()):
            rows = [slice(rank * shares + start, rank * shares + end) for rank in range(ranks)]
            keys, values = (torch.cat([tensor[part] for part in rows]) for tensor in (key, value))
            heads_first = (tensor.transpose(0, 1)[None] for tensor in (query[start:end], keys, values))
            visible = _visible(end - start, group.rank(), ranks) if ranks > 1 else None
            outputs.append(self._attend(heads_first, visible)[0].transpose(0, 1))
        return torch.cat(outputs).flatten(1)

    def _attend(self, heads_first: Iterable[torch.Tensor], visible: torch.Tensor | None) -> torch.Tensor:
        """Attention of query, key and value, (batch, heads, tokens, width) each. Without a mask a token sees itself and
        earlier tokens."""
        query, key, value = heads_first
        return torch.nn.functional.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=visible,
            is_causal=visible is None,
            scale=self.softmax_scale,
            enable_gqa=query.size(1) != key.size(1),
        )


def _visible(share: int, rank: int, ranks: int) -> torch.Tensor:
    """Which keys of a sequence the queries of a context-parallel rank see: (share, ranks * share).

    A sequence has 2 * `ranks` chunks. A rank has a chunk from the front and a chunk from the back, `share` tokens in
    all.
    """
    keys = torch.cat([_positions(share, other, ranks) for other in range(ranks)])
    return _positions(share, rank, ranks)[:, None] >= keys[None]


def _positions(share: int, rank: int, ranks: int) -> torch.Tensor:
    chunk = share // 2
    first, last = rank * chunk, (2 * ranks - 1 - rank) * chunk
    return torch.cat([torch.arange(first, first + chunk), torch.arange(last, last + chunk)])
