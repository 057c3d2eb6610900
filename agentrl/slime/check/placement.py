"""Checks that GPUs, engines, parallel sizes and the model fit together."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from agentrl.slime.check.arguments import Args
from agentrl.slime.check.finding import Finding, error, unchecked, warning
from agentrl.slime.check.setup import Setup, read_model
from agentrl.slime.sizes import Sizes, fp8_blocks, rotary_base

_MEGATRON_NAMES = {
    "layers": "--num-layers",
    "hidden": "--hidden-size",
    "ffn": "--ffn-hidden-size",
    "heads": "--num-attention-heads",
    "groups": "--num-query-groups",
    "experts": "--num-experts",
    "expert_ffn": "--moe-ffn-hidden-size",
}


_MODEL_PARALLEL = ("tensor_model", "pipeline_model", "context")


def engines(setup: Setup) -> Iterator[Finding]:
    gpus, each = setup.gpus, setup.args.rollout_num_gpus_per_engine
    if gpus is None and not (setup.args.debug_train_only or setup.args.rollout_external_engine_addrs):
        yield error("no GPUs generate: add --colocate, or --rollout-num-gpus with their number")
    if gpus and each:
        yield from _engines_on_gpus(gpus, each)
        yield from _engines_on_nodes(setup, each)


def _engines_on_gpus(gpus: int, each: int) -> Iterator[Finding]:
    if each > gpus:
        yield error(
            f"--rollout-num-gpus-per-engine {each} is more than the {gpus} GPUs that generate: no engine could start; "
            f"write {gpus}, or a divisor of it"
        )
    elif gpus % each:
        yield warning(
            f"--rollout-num-gpus-per-engine {each} does not divide the {gpus} GPUs that generate: {gpus % each} of "
            f"them stay idle; write a divisor of {gpus}"
        )


def _engines_on_nodes(setup: Setup, each: int) -> Iterator[Finding]:
    args = setup.args
    node, trainer = args.num_gpus_per_node, args.actor_num_gpus_per_node
    if args.colocate and node and trainer and trainer != node and args.actor_num_nodes > 1:
        yield error(
            f"--num-gpus-per-node {node} with {trainer} GPUs on each node (--actor-num-gpus-per-node): slime would "
            f"look for GPUs that are not there; add --num-gpus-per-node {trainer}"
        )
    elif node and each > node and each % node:
        yield error(f"--rollout-num-gpus-per-engine {each} is no multiple of --num-gpus-per-node {node}; make it one")


def parallel(setup: Setup) -> Iterator[Finding]:
    args, gpus = setup.args, setup.trainer_gpus
    tensor, pipeline, context = (getattr(args, f"{n}_parallel_size") or 1 for n in _MODEL_PARALLEL)
    model = tensor * pipeline * context
    if gpus and gpus % model:
        yield error(
            f"the trainer's {gpus} GPUs are no multiple of {model} (--tensor-model-parallel-size {tensor} x "
            f"--pipeline-model-parallel-size {pipeline} x --context-parallel-size {context}); lower one of them"
        )
    if args.num_attention_heads and args.num_attention_heads % tensor:
        yield error(f"--tensor-model-parallel-size {tensor} does not divide {args.num_attention_heads} attention heads")
    yield from _parallel_experts(setup, pipeline)


def _parallel_experts(setup: Setup, pipeline: int) -> Iterator[Finding]:
    args, gpus = setup.args, setup.trainer_gpus
    parallel = args.expert_model_parallel_size or 1
    ranks = parallel * (args.expert_tensor_parallel_size or 1) * pipeline
    if gpus and gpus % ranks:
        yield error(f"the trainer's {gpus} GPUs are no multiple of {ranks}, over which experts are split; lower it")
    if args.num_experts and args.num_experts % parallel:
        yield error(f"--expert-model-parallel-size {parallel} does not divide {args.num_experts}")


def folders(setup: Setup) -> Iterator[Finding]:
    """Check the folders that trainer and engines load. Without slime here, they may be on another machine."""
    args = setup.args
    for flag, path, made in (
        ("--hf-checkpoint", args.hf_checkpoint, "give the model's folder"),
        ("--ref-load", args.ref_load, "slime's tools/convert_hf_to_torch_dist.py makes it"),
    ):
        if path and path.startswith(("/", "./", "../", "~")) and not Path(path).is_dir():
            if setup.here:
                yield error(f"{flag} {path}: no such folder; {made}")
            else:
                yield unchecked(flag, f"{path} is not here; {made}")


def architecture(setup: Setup) -> Iterator[Finding]:
    """Compare Megatron's sizes with config.json. They differ if a script sources another model's file."""
    if not setup.args.hf_checkpoint or not Path(setup.args.hf_checkpoint).is_dir():
        return
    config = read_model(Path(setup.args.hf_checkpoint))
    ours, theirs = Sizes.of_args(setup.args), Sizes.of_config(config)
    if ours and theirs and (different := ours.differs(theirs)):
        pairs = ", ".join(f"{_MEGATRON_NAMES[n]} {getattr(ours, n)} for {getattr(theirs, n)}" for n in different)
        yield error(
            f"{setup.args.hf_checkpoint} is another model than Megatron is told ({pairs}); source its model file"
        )
    base, given = rotary_base(config), setup.args.rotary_base
    if base and given and base != float(given):
        yield error(f"--rotary-base {given:g} is not the model's rope_theta: add --rotary-base {base:.0f} at the end")


def fp8(setup: Setup) -> Iterator[Finding]:
    """Check FP8 blocks. SGLang refuses to split weights in the middle of a block."""
    guessed = not setup.model and "fp8" in Path(setup.model_path or "").name.lower()
    if not fp8_blocks(setup.model) and not guessed:
        return
    if setup.sizes is None:
        yield unchecked("how FP8 blocks are split", "neither config.json nor Megatron's flags tell the model's sizes")
        return
    tensor, experts, attention = _sglang_splits(setup.args)
    for part in setup.sizes.split_fp8_blocks(tensor, experts, attention):
        remedy = "write a smaller --rollout-num-gpus-per-engine"
        if part.startswith("the experts"):
            remedy = f"add --sglang-expert-parallel-size {tensor}"
        text = f"FP8: {part}, which is no multiple of 128, so SGLang refuses to split it over {tensor} GPUs; {remedy}"
        yield warning(f"{text}, if the checkpoint has blocks of 128 x 128") if guessed else error(text)


def _sglang_splits(args: Args) -> tuple[int, int, int]:
    """Over how many GPUs an engine splits a layer, its experts, and its attention."""
    gpus = args.rollout_num_gpus_per_engine or 1
    tensor = gpus // (args.sglang_pp_size or args.sglang_pipeline_parallel_size or 1)
    experts = args.sglang_ep_size or args.sglang_expert_parallel_size or 1
    attention = tensor // (args.sglang_dp_size or args.sglang_data_parallel_size or 1)
    return tensor, experts, max(1, attention)
