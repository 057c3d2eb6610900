"""Loss and gradients of the learner, with packs, checkpoints and pieces, against a plain computation, by architecture.

    python -m benchmarks.architectures [KIND ...]       # transformers' model types; a minute for all

Each model is a tiny random one made from its own configuration. The oracle shares no code with the learner: each row
alone, whole logits, log-softmax in float64, eval mode. Architectures that cannot be made so small are left out by name.
Three of the five rows begin alike and are read twice: in one pack, and after a stem, in packs of the longest row's
size. A model that does not compute the same for packs is padded.
"""

from __future__ import annotations

import copy
import logging
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

from agentrl.train import TrainConfig, batch, log_probs, stems
from agentrl.train.batch import Row
from agentrl.train.learner import Learner

KINDS = (
    "apertus", "arcee", "bitnet", "bloom", "cohere", "cohere2", "deepseek_v2", "doge", "ernie4_5", "exaone4",
    "falcon", "flex_olmo", "gemma", "gemma3_text", "glm", "glm4", "glm4_moe", "gpt2", "gpt_neox", "gpt_oss",
    "granite", "granitemoe", "helium", "hunyuan_v1_dense", "internlm3", "jamba", "lfm2", "llama", "minicpm3",
    "ministral", "mistral", "mixtral", "nanochat", "nemotron", "olmo", "olmo2", "olmo3", "opt", "persimmon",
    "phi", "phi3", "phimoe", "qwen2_moe", "qwen3_moe", "qwen3_next", "recurrent_gemma", "seed_oss", "smollm3",
    "stablelm", "starcoder2",
)  # fmt: skip
VOCABULARY, CONTEXT = 300, 256
SMALL = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "word_embed_proj_dim"), 64),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_key_value_heads", "num_experts_per_tok"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads"), 4),
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts"), 4),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner"), 96),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 48),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len"), CONTEXT),
    **dict.fromkeys(("head_dim", "v_head_dim", "q_lora_rank", "kv_lora_rank"), 16),
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "rotary_dim"), 8),
    **dict.fromkeys(("first_k_dense_replace", "n_group", "topk_group"), 1),
    "vocab_size": VOCABULARY, "sliding_window": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
MOST = 1e-5
"""The largest difference of a loss, and of a gradient in units of its norm."""


def main() -> None:
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    transformers.logging.set_verbosity_error()
    batch.PIECE_BYTES = log_probs.PIECE_BYTES = 4 * VOCABULARY * 5  # five tokens a piece
    stems.LEAST_STEM = 8
    right = wrong = packed = after = 0
    for kind in sys.argv[1:] or KINDS:
        try:
            model = make(kind)
            copies = copy.deepcopy(model), copy.deepcopy(model)
            expected = plainly(copies[0])
        except Exception as exc:  # noqa: BLE001 - configurations of all kinds, some of which allow no small model
            print(f"left out  {kind}: {type(exc).__name__}")
            continue
        learner = Learner(copies[1], TrainConfig.make(env="-", data="-", out="-", gradient_checkpointing=True))
        found = [differences(learner, budget, *expected) for budget in (4096, 1)]
        off = [max(pair) for pair in zip(*found, strict=True)]
        good = max(off) < MOST
        right, wrong, packed = right + good, wrong + (not good), packed + (learner.packing is not None)
        with_stems = any(micro.read and micro.read.stem for micro in learner.micro_batches(list(rows()), 1))
        after += with_stems
        how = "stems " if with_stems else "packed" if learner.packing else "padded"
        print(f"{'equal' if good else 'WRONG'}  {how}  {kind}: loss {off[0]:.1e}, gradient {off[1]:.1e}", flush=True)
    how = f"{packed} are packed, {after} of them after stems, the others padded"
    print(f"{right} of {right + wrong} architectures are equal; {how}")
    sys.exit(wrong > 0)


def make(kind: str) -> Any:
    base = AutoConfig.for_model(kind)
    given = {key: value for key, value in SMALL.items() if hasattr(base, key)}
    if getattr(base, "sliding_window", None) is None:
        given.pop("sliding_window", None)
    torch.manual_seed(1)
    attention = "eager" if kind == "gpt_oss" else "sdpa"
    model = AutoModelForCausalLM.from_config(type(base)(**given), attn_implementation=attention).float().eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.08)
    return model


def rows() -> Iterator[Row]:
    generator = torch.Generator().manual_seed(3)
    prompt = torch.randint(3, 290, (20,), generator=generator).tolist()
    for length in (37, 60, 24, 39, 44):
        ids = torch.randint(3, 290, (length,), generator=generator).tolist()
        if length in (37, 60, 44):
            ids[:20] = prompt
        positions = [i for i in range(20, length) if i % 3]
        yield Row(ids, positions, [((i * 7) % 5 - 2) / 40 for i in positions], [0.0] * len(positions))


def plainly(model: Any) -> tuple[float, dict[str, Any]]:
    """Loss and gradients, by the oracle."""
    loss = torch.zeros((), dtype=torch.float64)
    for row in rows():
        found = model(input_ids=torch.tensor([row.tokens]), use_cache=False).logits[0].double().log_softmax(-1)
        for position, weight in zip(row.positions, row.weights, strict=True):
            loss = loss - weight * found[position - 1, row.tokens[position]]
    torch.autograd.backward(loss)
    return loss.item(), {name: parameter.grad for name, parameter in model.named_parameters()}


def differences(learner: Learner, budget: int, loss: float, gradients: dict[str, Any]) -> tuple[float, float]:
    """How far the learner is from the oracle: in the loss, and in the gradient."""
    model, total = learner.model, 0.0
    model.zero_grad(set_to_none=True)
    with learner._training():
        for micro in learner.micro_batches(list(rows()), budget):
            part = -(micro.weights * micro.model_log_probs(model)).sum()
            micro.backward(part)
            total += part.item()
    off = size = 0.0
    for name, parameter in model.named_parameters():
        if (expected := gradients[name]) is not None:
            size += expected.square().sum().item()
            found = torch.zeros_like(expected) if parameter.grad is None else parameter.grad
            off += (found - expected).square().sum().item()
    return abs(total - loss), (off / size) ** 0.5


if __name__ == "__main__":
    main()
