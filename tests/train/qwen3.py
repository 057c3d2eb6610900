"""The configurations of Qwen/Qwen3-0.6B, -1.7B and -4B, as far as memory depends on them."""

from __future__ import annotations

from typing import Any

_SIZES = {"0.6B": (1024, 3072, 28, 16), "1.7B": (2048, 6144, 28, 16), "4B": (2560, 9728, 36, 32)}


def qwen3(size: str) -> Any:
    from transformers import Qwen3Config

    hidden, ffn, layers, heads = _SIZES[size]
    return Qwen3Config(
        hidden_size=hidden,
        intermediate_size=ffn,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=8,
        head_dim=128,
        vocab_size=151936,
        tie_word_embeddings=True,
        max_position_embeddings=40960,
    )
