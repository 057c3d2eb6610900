"""Packed rows beside padded ones."""

from __future__ import annotations

import pytest
import torch
import transformers

CPU = torch.device("cpu")


SIZES = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


PACKED = {
    "Qwen2": {},
    "Qwen3": {"tie_word_embeddings": True},
    "Llama": {"attention_dropout": 0.1},
    "Gemma3Text": {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]},
    "Granite": {"logits_scaling": 4.0},
    "Mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 7},
    "GPT2": {},
}


PADDED = {
    "Lfm2": {"layer_types": ["conv", "full_attention"]},
    "Bloom": {},
    "Mamba": {},
    "Gemma2": {"sliding_window": 8, "attn_logit_softcapping": 5.0},
}


def make(kind, **values):
    config = getattr(transformers, f"{kind}Config")(**{**SIZES, **(PACKED | PADDED)[kind], **values})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return transformers.AutoModelForCausalLM.from_config(config).eval()


def with_gradients(model, loss):
    loss.backward()
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return loss.item(), found


def assert_equal(found, expected):
    assert found[0] == pytest.approx(expected[0], rel=1e-5)
    assert found[1].keys() == expected[1].keys()
    for name, gradient in expected[1].items():
        assert torch.allclose(found[1][name], gradient, rtol=1e-4, atol=1e-5 * gradient.abs().max()), name


def bottom_right(queries, keys, values, own, whole, longest_own, longest_whole, scaling, window):
    """What a varlen kernel computes."""
    assert (longest_own, longest_whole) == (own.diff().max(), whole.diff().max())
    found = []
    for i in range(len(own) - 1):
        q, k, v = (
            states[ends[i] : ends[i + 1]].transpose(0, 1)
            for states, ends in ((queries, own), (keys, whole), (values, whole))
        )
        k, v = (states.repeat_interleave(len(q) // len(k), 0) for states in (k, v))
        places = torch.arange(k.shape[1])
        back = places[-q.shape[1] :, None] - places
        seen = (back >= 0) & ((back <= window[0]) | (window[0] < 0))
        scores = (q @ k.transpose(1, 2) * scaling).masked_fill(~seen, -torch.inf)
        found.append((scores.softmax(-1) @ v).transpose(0, 1))
    return torch.cat(found)
