"""Rehearse the launch of `make rehearse` in the layouts that slime offers, and print one line for each.

    SLIME_SRC=... python -m tests.rehearse.layouts [NAMES] [--out FOLDER] [--prefix COMMAND]

Exit code 0: each rehearsal was good.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.rehearse.calling import Rehearsed, example, rehearse

_EXPERTS = """
    --swiglu --num-layers 2 --hidden-size 128 --ffn-hidden-size 256 --num-attention-heads 4 --kv-channels 32
    --use-rotary-position-embeddings --disable-bias-linear --normalization RMSNorm --norm-epsilon 1e-6 --qk-layernorm
    --rotary-base 10000 --group-query-attention --num-query-groups 2 --vocab-size 1024
    --untie-embeddings-and-output-weights --num-experts 4 --moe-router-topk 2 --moe-ffn-hidden-size 64
    --moe-grouped-gemm --moe-token-dispatcher-type alltoall --moe-router-load-balancing-type seq_aux_loss
    --moe-aux-loss-coeff 0 --moe-router-score-function softmax --moe-layer-freq [1]*2 --moe-router-dtype fp32
"""


@dataclass(frozen=True, slots=True)
class Layout:
    add: str = ""
    remove: tuple[str, ...] = ()
    """Flags of the example that are left out, with their values."""
    program: str = "train.py"
    options: tuple[str, ...] = ("--no-resume",)
    thinking: str = ""
    experts: bool = False


_COLOCATED = ("--colocate", "--use-fault-tolerance")
LAYOUTS = {
    "colocated, resumed": Layout(options=()),
    "apart, resumed": Layout("--rollout-num-gpus 2", _COLOCATED, options=()),
    "train_async, resumed": Layout("--rollout-num-gpus 2", _COLOCATED, "train_async.py", options=()),
    "fully-async": Layout(
        "--rollout-num-gpus 2 --rollout-function-path agentrl.slime.generate_rollout_fully_async --use-tis",
        (*_COLOCATED, "--eval-interval", "--eval-prompt-data", "--n-samples-per-eval-prompt"),
        "train_async.py",
    ),
    "tensor parallel 2": Layout("--tensor-model-parallel-size 2"),
    "tensor parallel 2, sequence parallel": Layout("--tensor-model-parallel-size 2 --sequence-parallel"),
    "pipeline parallel 2": Layout("--pipeline-model-parallel-size 2"),
    "context parallel 2": Layout("--context-parallel-size 2"),
    "partial rollout": Layout(
        "--rollout-num-gpus 2 --over-sampling-batch-size 64 --partial-rollout --mask-offpolicy-in-partial-rollout",
        _COLOCATED,
    ),
    "several samples an episode": Layout(thinking="strip"),
    "KL loss": Layout("--use-kl-loss --kl-loss-coef 0.01 --kl-loss-type low_var_kl"),
    "experts, expert parallel 2": Layout("--expert-model-parallel-size 2", experts=True),
    "two nodes": Layout("--actor-num-nodes 2 --actor-num-gpus-per-node 4 --num-gpus-per-node 4"),
}


def words_of(layout: Layout, folder: Path) -> list[str]:
    """The arguments of slime's program. Writes data, configuration and model into the folder."""
    module = example()
    words = module.prepare(folder)
    if layout.experts:
        write_experts(folder / "tiny")
        words = _EXPERTS.split() + words[len(module.MODEL.split()) :]
    if layout.thinking:
        with (folder / "agentrl.yaml").open("a", encoding="utf-8") as file:
            file.write(f"  thinking: {layout.thinking}\n")
    for flag in layout.remove:
        if flag in words:
            start = words.index(flag)
            end = next((i for i in range(start + 1, len(words)) if words[i].startswith("--")), len(words))
            del words[start:end]
    return [*words, *layout.add.split()]


def write_experts(folder: Path) -> None:
    """A random model with four experts, with the tokenizer of `tiny`."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    config = Qwen3MoeConfig(
        vocab_size=1024, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64,
        norm_topk_prob=True, tie_word_embeddings=False, rope_theta=10000.0, max_position_embeddings=2048,
    )  # fmt: skip
    (folder / "model.safetensors").unlink(missing_ok=True)
    Qwen3MoeForCausalLM(config).save_pretrained(folder)


def slime() -> Path:
    return Path(os.environ["SLIME_SRC"]).resolve()


def describe(name: str, run: Rehearsed) -> str:
    code, report, seconds, _ = run
    if report is None:
        return f"{name}: exit code {code} after {seconds:.0f} s, no report"
    figures = report["figures"]
    differences = [row["difference"] for row in figures["log_probs"]]
    apart = f"{min(differences):.4f} to {max(differences):.4f}" if differences else "none"
    gigabytes = figures.get("memory_bytes", 0) / 1e9
    last = "; ".join(report["problems"]) or "no problem"
    return f"{name}: exit code {code}, {seconds:.0f} s, {gigabytes:.1f} GB, log-probs {apart}, {last}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--prefix", default="", help="a command in front of each rehearsal")
    options = parser.parse_args()
    folder = options.out or Path(tempfile.mkdtemp(prefix="layouts-"))
    good = True
    for name, layout in LAYOUTS.items():
        if options.names and name not in options.names:
            continue
        place = (folder / name.replace(" ", "-").replace(",", "")).resolve()
        words = words_of(layout, place)
        arguments = ["--timeout", "300", *layout.options, "--", "python3", str(slime() / layout.program), *words]
        run = rehearse(arguments, place / "out", shlex.split(options.prefix))
        print(describe(name, run), flush=True)
        good &= run.code == 0
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
