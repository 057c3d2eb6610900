"""A Megatron-Core GPTModel, and the conversion of its weights from and to Hugging Face's Qwen2 and Llama.

Only Megatron's attention is replaced, by `PackedAttention`: without TransformerEngine, Megatron refuses packed
sequences, and slime packs sequences (`slime/backends/megatron_utils/data.py:get_batch`).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import device
import torch
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.module import Float16Module, MegatronModule
from torch import Tensor

Weights = Mapping[str, Tensor]


class PackedAttention(MegatronModule):
    """Causal attention within each sequence of a packed row, in TransformerEngine's `thd` layout."""

    def __init__(self, config: TransformerConfig, layer_number: int, *args: Any, **kwargs: Any) -> None:
        super().__init__(config=config)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        *,
        packed_seq_params: PackedSeqParams,
        **_: Any,
    ) -> Tensor:
        """query `[tokens, heads, width]`, key and value `[tokens, groups, width]` -> `[tokens, heads * width]`."""
        bounds = packed_seq_params.cu_seqlens_q.tolist()
        outputs = []
        for start, end in pairwise(bounds):
            q, k, v = (tensor[start:end].transpose(0, 1) for tensor in (query, key, value))
            attended = torch.nn.functional.scaled_dot_product_attention(
                q[None], k[None], v[None], is_causal=True, enable_gqa=q.size(0) != k.size(0)
            )
            outputs.append(attended[0].transpose(0, 1))
        return torch.cat(outputs).flatten(1)


def transformer_config(hf: Any, dtype: torch.dtype = torch.float32) -> TransformerConfig:
    """Megatron's configuration for a Hugging Face Qwen2 or Llama configuration. Raises ValueError for other models."""
    if hf.model_type not in ("qwen2", "llama") or hf.rope_parameters.get("rope_type", "default") != "default":
        raise ValueError(f"{hf.model_type}: the weight map knows qwen2 and llama with plain rotary embeddings")
    return TransformerConfig(
        num_layers=hf.num_hidden_layers,
        hidden_size=hf.hidden_size,
        ffn_hidden_size=hf.intermediate_size,
        num_attention_heads=hf.num_attention_heads,
        num_query_groups=hf.num_key_value_heads,
        kv_channels=_head_width(hf),
        layernorm_epsilon=hf.rms_norm_eps,
        normalization="RMSNorm",
        activation_func=torch.nn.functional.silu,
        gated_linear_unit=True,
        add_bias_linear=False,
        add_qkv_bias=hf.model_type == "qwen2",
        hidden_dropout=0.0,
        attention_dropout=0.0,
        bf16=dtype == torch.bfloat16,
        params_dtype=dtype,
        use_cpu_initialization=True,
        # Fused kernels are CUDA's. Without them the model is the same on every device.
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        apply_rope_fusion=False,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
        persist_layer_norm=False,
    )


def packed_layers(*_: Any) -> Any:
    """The spec of Megatron's layer without TransformerEngine, with `PackedAttention`. slime's flag --spec may name
    it."""
    spec = get_gpt_layer_local_spec(normalization="RMSNorm")
    spec.submodules.self_attention.submodules.core_attention = PackedAttention
    return spec


def build_model(hf: Any, weights: Weights) -> GPTModel:
    """The GPTModel of a Hugging Face configuration and state dict, in the weights' dtype, on the CPU."""
    config = transformer_config(hf, next(iter(weights.values())).dtype)
    model = GPTModel(
        config=config,
        transformer_layer_spec=packed_layers(),
        vocab_size=hf.vocab_size,
        max_sequence_length=hf.max_position_embeddings,
        position_embedding_type="rope",
        rotary_base=int(hf.rope_parameters["rope_theta"]),
        share_embeddings_and_output_weights=hf.tie_word_embeddings,
        parallel_output=True,
    )
    model.load_state_dict(to_megatron(weights, hf), strict=False)
    missing = dict(model.named_parameters()).keys() - to_megatron(weights, hf).keys()
    assert not missing, f"no weights for {sorted(missing)}"
    return model


def data_parallel(model: GPTModel) -> DistributedDataParallel:
    """The model on the run's device, in the same wrappers as from Megatron's `get_model`.

    `Float16Module`, for bfloat16, gives logits in float32. `DistributedDataParallel` keeps gradients in flat float32
    buffers, and averages them over the data-parallel group.
    """
    config = model.config
    inner: Any = model.to(device.here())
    if config.bf16:
        inner = Float16Module(config, inner)
    settings = DistributedDataParallelConfig(grad_reduce_in_fp32=True, overlap_grad_reduce=False)
    return DistributedDataParallel(config, settings, inner)


def bare(model: Any) -> Any:
    """The GPTModel inside of Megatron's wrappers."""
    while hasattr(model, "module"):
        model = model.module
    return model


def adam(model: DistributedDataParallel, learning_rate: float, max_grad_norm: float = 1.0) -> Any:
    """Megatron's Adam over 32-bit weights, or over its 32-bit copies of others, without weight decay."""
    settings = OptimizerConfig(
        optimizer="adam",
        bf16=model.config.bf16,
        params_dtype=model.config.params_dtype,
        lr=learning_rate,
        weight_decay=0.0,
        adam_beta1=0.9,
        adam_beta2=0.95,
        clip_grad=max_grad_norm,
        use_distributed_optimizer=False,
    )
    return get_megatron_optimizer(settings, [model])


# The weight map. Megatron keeps the query, key and value projections of a group of heads side by side in one matrix
# (q of the group's heads, k, v; then the next group), and an MLP's gate and up projections one below the other.

_RENAMED = {
    "input_layernorm.weight": "input_layernorm.weight",
    "self_attn.o_proj.weight": "self_attention.linear_proj.weight",
    "post_attention_layernorm.weight": "pre_mlp_layernorm.weight",
    "mlp.down_proj.weight": "mlp.linear_fc2.weight",
}
_OUTER = {
    "model.embed_tokens.weight": "embedding.word_embeddings.weight",
    "model.norm.weight": "decoder.final_layernorm.weight",
}


def to_megatron(weights: Weights, hf: Any) -> dict[str, Tensor]:
    """The weights of a Hugging Face state dict, with Megatron's names and layout."""
    found = {mine: weights[theirs] for theirs, mine in _outer(hf).items()}
    for layer in range(hf.num_hidden_layers):
        theirs, mine = f"model.layers.{layer}.", f"decoder.layers.{layer}."
        found |= {mine + new: weights[theirs + old] for old, new in _RENAMED.items()}
        gate_up = [weights[f"{theirs}mlp.{name}_proj.weight"] for name in ("gate", "up")]
        found[f"{mine}mlp.linear_fc1.weight"] = torch.cat(gate_up)
        for kind in _qkv_kinds(hf):
            groups = [
                weights[f"{theirs}self_attn.{name}_proj.{kind}"].unflatten(0, (hf.num_key_value_heads, -1))
                for name in "qkv"
            ]
            found[f"{mine}self_attention.linear_qkv.{kind}"] = torch.cat(groups, dim=1).flatten(0, 1)
    return found


def to_hugging_face(weights: Weights, hf: Any) -> dict[str, Tensor]:
    """The inverse of `to_megatron`: weights with the names and layout of Hugging Face."""
    found = {theirs: weights[mine] for theirs, mine in _outer(hf).items()}
    width = _head_width(hf)
    shares = [hf.num_attention_heads // hf.num_key_value_heads * width, width, width]
    for layer in range(hf.num_hidden_layers):
        theirs, mine = f"model.layers.{layer}.", f"decoder.layers.{layer}."
        found |= {theirs + old: weights[mine + new] for old, new in _RENAMED.items()}
        gate, up = weights[f"{mine}mlp.linear_fc1.weight"].chunk(2)
        found |= {f"{theirs}mlp.gate_proj.weight": gate, f"{theirs}mlp.up_proj.weight": up}
        for kind in _qkv_kinds(hf):
            groups = weights[f"{mine}self_attention.linear_qkv.{kind}"].unflatten(0, (hf.num_key_value_heads, -1))
            for name, part in zip("qkv", groups.split(shares, dim=1), strict=True):
                found[f"{theirs}self_attn.{name}_proj.{kind}"] = part.flatten(0, 1)
    return found


def _outer(hf: Any) -> dict[str, str]:
    return _OUTER if hf.tie_word_embeddings else {**_OUTER, "lm_head.weight": "output_layer.weight"}


def _qkv_kinds(hf: Any) -> tuple[str, ...]:
    return ("weight", "bias") if hf.model_type == "qwen2" else ("weight",)


def _head_width(hf: Any) -> int:
    return getattr(hf, "head_dim", None) or hf.hidden_size // hf.num_attention_heads


def packed(sequences: list[Tensor]) -> tuple[Tensor, PackedSeqParams]:
    """A row of all sequences of token ids, one after the other, and the offset at which each begins."""
    bounds = torch.tensor([0, *(len(s) for s in sequences)], dtype=torch.int).cumsum(0, dtype=torch.int)
    longest = max(map(len, sequences))
    params = PackedSeqParams(
        cu_seqlens_q=bounds, cu_seqlens_kv=bounds, max_seqlen_q=longest, max_seqlen_kv=longest, qkv_format="thd"
    )
    return torch.cat(sequences)[None], params
