"""Builds Megatron's GPTModel from the rehearsal's layers with random weights, writes the weights as a folder of
transformers by the converter of miles-rl's wheel, and compares the log-probs. Compares gradients with those after the
recomputation of activations. Needs neither slime nor a launch. Run as a program under the hooks of a rehearsal:

    layers_alone.py qwen2|qwen3|moe
"""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace

from tests.rehearse.layers_probe import shape


def main(kind):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free.getsockname()[1]), RANK="0", WORLD_SIZE="1")
    import torch
    from megatron.core import parallel_state
    from megatron.core.packed_seq_params import PackedSeqParams
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM

    from agentrl.rehearse.standins.torch_cuda import on_cpu

    config = shape(kind)
    torch.distributed.init_process_group("gloo")
    with on_cpu():
        parallel_state.initialize_model_parallel()
        model_parallel_cuda_manual_seed(1)
        model = build(kind, config)
        with tempfile.TemporaryDirectory() as folder:  # only from a folder does transformers join the experts' weights
            config.save_pretrained(folder)
            save_file(weights(kind, config, model), f"{folder}/model.safetensors", {"format": "pt"})
            theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        sequences = [torch.arange(length) * 7 % config.vocab_size for length in (16, 1, 31)]
        ends = torch.tensor([0, *map(len, sequences)]).cumsum(0).int()
        params = PackedSeqParams(
            qkv_format="thd", cu_seqlens_q=ends, cu_seqlens_kv=ends, max_seqlen_q=64, max_seqlen_kv=64
        )
        with torch.no_grad():
            logits = model(torch.cat(sequences)[None], None, None, packed_seq_params=params)[0]
            parts = logits.log_softmax(-1).split([*map(len, sequences)])
            expected = [theirs(sequence[None]).logits[0].log_softmax(-1) for sequence in sequences]
        tokens = torch.cat(sequences)[None]
        kept = gradients(model, tokens, params)
        sizes = model.config
        sizes.recompute_granularity, sizes.recompute_method, sizes.recompute_num_layers = "full", "uniform", 1
        recomputed = gradients(model, tokens, params)
    print("recomputed", float((kept - recomputed).abs().max()), "of", float(kept.abs().max()))
    print("worst", max(float((one - other).abs().max()) for one, other in zip(parts, expected, strict=True)))


def gradients(model, tokens, params):
    """All gradients of the tokens' mean log-prob, in one vector."""
    import torch

    model.zero_grad()
    log_probs = model(tokens, None, None, packed_seq_params=params)[0].log_softmax(-1)
    log_probs.gather(-1, tokens[0][:, None]).mean().backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])


def build(kind, config):
    import torch
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_with_transformer_engine_spec
    from megatron.core.transformer import TransformerConfig

    experts = {}
    if kind == "moe":
        experts = {
            "num_moe_experts": config.num_experts,
            "moe_router_topk": config.num_experts_per_tok,
            "moe_ffn_hidden_size": config.moe_intermediate_size,
            "moe_grouped_gemm": True,
            "moe_token_dispatcher_type": "alltoall",
            "moe_router_load_balancing_type": "none",
            "moe_aux_loss_coeff": 0.0,
        }
    sizes = TransformerConfig(
        num_layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        ffn_hidden_size=config.intermediate_size,
        num_attention_heads=config.num_attention_heads,
        num_query_groups=config.num_key_value_heads,
        kv_channels=head_size(config),
        normalization="RMSNorm",
        layernorm_epsilon=config.rms_norm_eps,
        add_bias_linear=False,
        add_qkv_bias=kind == "qwen2",
        qk_layernorm=kind != "qwen2",
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        use_cpu_initialization=True,
        bias_activation_fusion=False,
        **experts,
    )
    spec = get_gpt_layer_with_transformer_engine_spec(
        num_experts=experts.get("num_moe_experts"), moe_grouped_gemm=bool(experts), qk_layernorm=sizes.qk_layernorm
    )
    model = GPTModel(
        sizes,
        spec,
        vocab_size=config.vocab_size,
        max_sequence_length=128,
        position_embedding_type="rope",
        rotary_base=int(config.rope_parameters["rope_theta"]),
        share_embeddings_and_output_weights=False,
    )
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():  # norms and biases must differ from ones and zeros
            scale = 0.3 if parameter.dim() == 1 else 0.05
            parameter.add_(torch.randn(parameter.shape, generator=generator) * scale)
    return model


def head_size(config):
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def weights(kind, config, model):
    """The weights by transformers' names."""
    convert = converter("qwen3moe" if kind == "moe" else "qwen2")
    args = SimpleNamespace(
        vocab_size=config.vocab_size,
        q_lora_rank=None,
        num_layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        num_attention_heads=config.num_attention_heads,
        num_query_groups=config.num_key_value_heads,
        kv_channels=head_size(config),
        num_experts=getattr(config, "num_experts", None),
    )
    return {
        theirs: value.contiguous()
        for ours, parameter in model.named_parameters()
        for theirs, value in convert(args, f"module.module.{ours}", parameter.detach())
    }


def converter(name):
    """A converter of the wheel, loaded by its file: the package around it imports a whole SGLang."""
    folder = Path(find_spec("miles").submodule_search_locations[0])
    file = folder / f"backends/megatron_utils/megatron_to_hf/{name}.py"
    spec = spec_from_file_location(name, file)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, f"convert_{name}_to_hf")


if __name__ == "__main__":
    main(*sys.argv[1:])
