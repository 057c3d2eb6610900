"""Builds Megatron's GPTModel from the rehearsal's layers, loads a small model of transformers by slime's loader, and
compares the logits. Run as a program, under the hooks of a rehearsal, on one rank or more:

    layers_probe.py KIND FOLDER RANK RANKS tp|pp|cp|sp|ep

Prints the largest difference of a log-prob, and the names of the parameters that slime does not hand over.
"""

from __future__ import annotations

import os
import sys


def shape(kind):
    from transformers import Qwen2Config, Qwen3Config, Qwen3MoeConfig

    common = {
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "tie_word_embeddings": False,
    }
    match kind:
        case "qwen2":
            return Qwen2Config(**common)
        case "qwen3":
            return Qwen3Config(head_dim=16, **common)
        case "moe":
            return Qwen3MoeConfig(
                head_dim=16,
                num_experts=4,
                num_experts_per_tok=2,
                moe_intermediate_size=24,
                norm_topk_prob=True,
                **common,
            )
    raise ValueError(kind)


def make(kind, folder):
    """Write a random model whose one-dimensional weights are not those of the initialisation."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(shape(kind), dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * (0.3 if parameter.dim() == 1 else 0.05))
    model.save_pretrained(folder)


_FLAGS = """
--debug-train-only --swiglu --disable-bias-linear --normalization RMSNorm --group-query-attention
--use-rotary-position-embeddings --untie-embeddings-and-output-weights --micro-batch-size 1
--no-gradient-accumulation-fusion --no-rope-fusion --no-masked-softmax-fusion --no-persist-layer-norm
--no-bias-swiglu-fusion --no-bias-dropout-fusion --use-cpu-initialization --make-vocab-size-divisible-by 1
--distributed-backend gloo --attention-dropout 0 --hidden-dropout 0
--num-rollout 1 --rollout-batch-size 2 --n-samples-per-prompt 1 --actor-num-nodes 1
"""
_KINDS = {
    "qwen2": "--add-qkv-bias",
    "qwen3": "--qk-layernorm --kv-channels 16",
    "moe": "--qk-layernorm --kv-channels 16 --num-experts 4 --moe-router-topk 2 --moe-ffn-hidden-size 24 "
    "--moe-grouped-gemm --moe-token-dispatcher-type alltoall --moe-router-load-balancing-type none "
    "--moe-aux-loss-coeff 0 --moe-router-score-function softmax --moe-layer-freq [1]*2",
}
_LAYOUTS = {
    "": "",
    "tp": "--tensor-model-parallel-size 2",
    "sp": "--tensor-model-parallel-size 2 --sequence-parallel",
    "cp": "--context-parallel-size 2",
    "ep": "--expert-model-parallel-size 2",
}


def flags(kind, folder, layout):
    config = shape(kind)
    sizes = {
        "--hf-checkpoint": folder,
        "--ref-load": folder,
        "--actor-num-gpus-per-node": 2 if layout else 1,
        "--num-layers": config.num_hidden_layers,
        "--hidden-size": config.hidden_size,
        "--ffn-hidden-size": config.intermediate_size,
        "--vocab-size": config.vocab_size,
        "--num-attention-heads": config.num_attention_heads,
        "--num-query-groups": config.num_key_value_heads,
        "--norm-epsilon": config.rms_norm_eps,
        "--rotary-base": int(config.rope_parameters["rope_theta"]),
    }
    words = [str(word) for item in sizes.items() for word in item]
    return [*_FLAGS.split(), *words, *_KINDS[kind].split(), *_LAYOUTS[layout].split()]


def log_probs(model, sequences):
    """Log-probs of each packed sequence's tokens, of the context-parallel share of this rank."""
    import torch
    from megatron.core import mpu
    from megatron.core.packed_seq_params import PackedSeqParams
    from megatron.core.tensor_parallel import gather_from_tensor_model_parallel_region
    from slime.backends.megatron_utils.cp_utils import slice_with_cp

    shares = [slice_with_cp(sequence, 0) for sequence in sequences]
    ends = torch.tensor([0, *(len(share) for share in shares)]).cumsum(0).int() * mpu.get_context_parallel_world_size()
    params = PackedSeqParams(qkv_format="thd", cu_seqlens_q=ends, cu_seqlens_kv=ends, max_seqlen_q=64, max_seqlen_kv=64)
    logits = model(torch.cat(shares)[None], None, None, packed_seq_params=params)
    logits = gather_from_tensor_model_parallel_region(logits)[0]
    return [part.float().log_softmax(-1) for part in logits.split([len(share) for share in shares])]


def main(kind, folder, rank, ranks, layout):
    os.environ.update(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=ranks)
    sys.argv = ["train.py", *flags(kind, folder, layout)]
    import torch
    from megatron.training.training import get_model
    from safetensors.torch import load_file
    from slime.backends.megatron_utils import initialize
    from slime.backends.megatron_utils.cp_utils import slice_with_cp
    from slime.backends.megatron_utils.hf_to_megatron import load_hf_weights
    from slime.backends.megatron_utils.model_provider import get_model_provider_func
    from slime.utils.arguments import parse_args
    from transformers import AutoModelForCausalLM

    from agentrl.rehearse.standins.torch_cuda import on_cpu

    args = parse_args()
    args.bf16, args.params_dtype = False, torch.float32  # slime trains in bfloat16, where a comparison is coarse
    torch.distributed.init_process_group("gloo")
    args.rank, args.world_size = int(rank), int(ranks)
    with on_cpu():
        initialize.init(args)
        model = get_model(get_model_provider_func(args), wrap_with_ddp=False)
        load_hf_weights(args, [within_module(model[0])], folder)
        theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        generator = torch.Generator().manual_seed(1)
        sequences = [torch.randint(0, 64, (length,), generator=generator) for length in (16, 1, 31)]
        worst = 0.0
        with torch.no_grad():
            shares = log_probs(model[0], sequences)
        for share, sequence in zip(shares, sequences, strict=True):
            expected = slice_with_cp(theirs(sequence[None]).logits[0].detach().float().log_softmax(-1), 0.0)
            real = expected.abs().sum(-1) > 0  # slime pads the end of a context-parallel sequence
            worst = max(worst, *(share - expected)[real].abs().flatten().tolist(), 0.0)
        print("worst", worst)
        if not layout:
            compare_one_rank(args, model[0], theirs, sequences, load_file(f"{folder}/model.safetensors"))


def within_module(model):
    """The model as Megatron holds it in bfloat16: slime's loader numbers experts and layers only under such names."""
    import torch

    wrapper = torch.nn.Module()
    wrapper.module, wrapper.config = model, model.config
    return wrapper


def compare_one_rank(args, model, theirs, sequences, given):
    """The weights that slime would hand over, and their gradients."""
    import torch
    from slime.backends.megatron_utils.megatron_to_hf import convert_to_hf

    kind = type(theirs.config).__name__.lower()
    chosen = [torch.arange(len(sequence)) % 7 for sequence in sequences]
    ours_loss = sum(
        part.gather(1, ids[:, None]).sum() for part, ids in zip(log_probs(model, sequences), chosen, strict=True)
    )
    ours_loss.backward()
    for sequence, ids in zip(sequences, chosen, strict=True):
        theirs(sequence[None]).logits[0].float().log_softmax(-1).gather(1, ids[:, None]).sum().backward()
    handed, gradients = {}, {}
    for name, parameter in model.named_parameters():
        full = f"module.module.{name.removeprefix('module.').removeprefix('module.')}"
        handed.update(convert_to_hf(args, kind, full, parameter))
        gradients.update(convert_to_hf(args, kind, full, parameter.grad))
    wrong = [name for name in given if name not in handed or not torch.equal(handed[name].float(), given[name])]
    print("wrong:", *wrong)
    expected = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    shared = [name for name in expected if name in gradients]  # transformers joins the weights of all experts
    difference = max(float((gradients[name] - expected[name]).abs().max()) for name in shared)
    print("gradients", len(shared), difference)


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(sys.argv[2], sys.argv[3])
    else:
        main(*sys.argv[1:])
