"""Compare LocalEngine with the generation methods of transformers: `python benchmarks/bench_local_engine.py [--quick]`.

    --overhead [--device cuda]     only the time that LocalEngine adds to the forward pass of the same batch

Every row generates the same number of tokens for the same prompts, with sampling and log-probs; times are the best of
several turns, in which the methods alternate. "all" counts the prefill's time too. The second table plays sessions of
several turns, with and without the prefixes that a session stores.

The overhead is the difference between a decode step of 128 rows and the forward pass alone of the same batch. For the
forward pass, keys and values of the same size are in memory without gaps; it writes, masks and samples nothing. Models:
`tiny`, and a model of SmolLM2's shape.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, TypeAlias

import torch
from transformers import Cache, DynamicCache, GenerationConfig, LlamaConfig, LlamaForCausalLM

from agentrl.engine.local import LocalEngine
from agentrl.engine.local.batch import Batch
from agentrl.engine.local.fitness import measure
from agentrl.engine.local.request import GenerateRequest
from agentrl.engine.local.sampling import Sampling, draw
from agentrl.models import tiny_model, tiny_tokenizer

Prompts: TypeAlias = list[list[int]]
Method: TypeAlias = Callable[[Prompts, int], None]
ROWS = 128


@cache
def tiny() -> tuple[Any, Any]:
    return tiny_model().eval(), tiny_tokenizer()


def make_prompts(count: int, rng: random.Random) -> Prompts:
    """Prompts of about 150 tokens each."""
    return [[rng.randrange(len(tiny()[1])) for _ in range(rng.randrange(120, 180))] for _ in range(count)]


def padded(prompts: Prompts) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts])
    return ids, torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])


@torch.inference_mode()
def generate(prompts: Prompts, tokens: int) -> None:
    ids, mask = padded(prompts)
    tiny()[0].generate(
        ids, attention_mask=mask, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=True, top_k=0,
        output_logits=True, return_dict_in_generate=True,
    )  # fmt: skip


def continuous_batching(prompts: Prompts, tokens: int) -> None:
    config = GenerationConfig(max_new_tokens=tokens, do_sample=True, top_k=0, eos_token_id=-1, pad_token_id=0)
    outputs = tiny()[0].generate_batch(prompts, generation_config=config, progress_bar=False)
    if sum(len(output.generated_tokens) for output in outputs.values()) != tokens * len(prompts):
        raise RuntimeError("the continuous batching manager lost requests")


@torch.inference_mode()
def dynamic_cache(prompts: Prompts, tokens: int) -> None:
    """Sample in a simple loop over the model's forward pass, with padding on the left and a cache that grows by
    concatenation."""
    ids, mask = padded(prompts)
    model = tiny()[0]
    past, samplings = DynamicCache(config=model.config), [Sampling(seed=i) for i in range(len(prompts))]
    positions = (mask.cumsum(-1) - 1).clamp_min(0)
    for step in range(tokens):
        logits = model(
            input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=past, logits_to_keep=1
        ).logits[:, -1]
        sampled, _ = draw(logits, samplings, [step] * len(prompts))
        ids, positions = torch.tensor(sampled)[:, None], positions[:, -1:] + 1
        mask = torch.cat([mask, torch.ones_like(ids)], 1)


def local_engine(prompts: Prompts, tokens: int) -> None:
    asyncio.run(play(prompts, tokens, turns=1, sessions=False))


async def play(prompts: Prompts, tokens: int, *, turns: int, sessions: bool) -> None:
    engine = LocalEngine(*tiny(), max_batch=len(prompts))

    async def one(index: int, ids: list[int]) -> None:
        with lockstep.episode():
            for _ in range(turns):
                params: Any = {"max_new_tokens": tokens, "ignore_eos": True, "sampling_seed": index}
                answer = await engine.generate(ids, params, session_id=str(index) if sessions else "")
                ids = [*ids, *answer.tokens, *ids[:20]]  # an observation

    with engine.lockstep(len(prompts)) as lockstep:
        await asyncio.gather(*(one(i, ids) for i, ids in enumerate(prompts)))
    await engine.close()


def fastest(
    runs: Mapping[str, Callable[[], Any]], repeats: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """Name -> the least seconds of a run. The runs alternate, so that the load of the machine is the same for all."""
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(repeats):
        for name, run in runs.items():
            start = clock()
            run()
            best[name] = min(best[name], clock() - start)
    return best


def compare(methods: Sequence[Method], batch: int, tokens: int, repeats: int) -> None:
    prompts = make_prompts(batch, random.Random(0))
    whole = fastest({m.__name__: partial(m, prompts, tokens) for m in methods}, repeats)
    first = fastest({m.__name__: partial(m, prompts, 1) for m in methods}, repeats)
    for name, seconds in whole.items():
        decode = batch * (tokens - 1) / (seconds - first[name])
        print(f"{name:24}{batch:>6}{batch * tokens / seconds:>11,.0f}{decode:>14,.0f}", flush=True)


def compare_sessions(count: int, tokens: int, repeats: int) -> None:
    prompts = make_prompts(count, random.Random(0))
    runs = {
        name: lambda kept=kept: asyncio.run(play(prompts, tokens, turns=3, sessions=kept))
        for name, kept in (("computed again", False), ("kept", True))
    }
    for name, seconds in fastest(runs, repeats).items():
        print(f"{count} sessions x 3 turns, prefixes {name:16}{seconds:>8.2f} s", flush=True)


class Ready(Cache):  # type: ignore[misc]
    """A cache of fixed keys and values. The keys and values of a step are neither written nor read."""

    def __init__(self, model: Any, rows: int, columns: int) -> None:
        super().__init__(layers=[])
        config, place = model.config, {"device": model.device, "dtype": model.dtype}
        size = config.hidden_size // config.num_attention_heads
        shape = (rows, config.num_key_value_heads, columns, size)
        self._layers = [(torch.randn(shape, **place), torch.randn(shape, **place)) for _ in model.model.layers]

    def update(self, key: object, value: object, layer_idx: int, *_: object, **__: object) -> Any:
        return self._layers[layer_idx]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0


def smollm2_shape(device: str) -> Any:
    """A model of SmolLM2's shape with random weights; in bfloat16 on a GPU."""
    config = LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, tie_word_embeddings=True, max_position_embeddings=2048,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    return model.to(device, torch.bfloat16 if device == "cuda" else torch.float32)


def overhead(name: str, model: Any, steps: int) -> dict[str, float]:
    """Milliseconds of a decode step and of the forward pass alone: the least of `steps` runs, which alternate."""
    rng, vocabulary = random.Random(0), model.config.vocab_size
    batch = Batch(model, tiny()[1], max_batch=ROWS, max_context=1024, eos=frozenset(), token_bytes=measure(model, 1024))
    requests = [
        GenerateRequest([rng.randrange(vocabulary) for _ in range(rng.randrange(120, 180))], Sampling(seed=row))
        for row in range(ROWS)
    ]
    batch.admit(requests)
    columns = max(len(request.tokens) for request in requests)
    ready = Ready(model, ROWS, columns)
    ids = torch.zeros(ROWS, 1, dtype=torch.long, device=model.device)

    @torch.inference_mode()
    def bare() -> None:
        model(input_ids=ids, position_ids=ids + columns, past_key_values=ready, use_cache=True, logits_to_keep=1)
        if model.device.type == "cuda":
            torch.cuda.synchronize()

    # On a CPU it is one thread's time, which other programs do not lengthen.
    clock = time.perf_counter if model.device.type == "cuda" else time.thread_time
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        best = fastest({"step": batch.step, "bare": bare}, steps, clock)
    finally:
        torch.set_num_threads(threads)
    step, forward = 1000 * best["step"], 1000 * best["bare"]
    print(
        f"{name:14}{ROWS:>6} rows{step:>10.1f} ms a step{forward:>10.1f} ms bare: {step / forward - 1:>7.0%} more",
        flush=True,
    )
    return {"step_ms": step, "bare_forward_ms": forward, "overhead": step / forward - 1}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small batch, once")
    parser.add_argument("--overhead", action="store_true", help="only the overhead")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="of the overhead")
    args = parser.parse_args()
    quick, model = args.quick, tiny()[0]
    overhead("tiny", tiny_model().eval().to(args.device), 5 if quick else 40)
    if not quick:
        overhead("SmolLM2's shape", smollm2_shape(args.device), 8 if args.device == "cpu" else 40)
    if args.overhead:
        return
    print(f"tiny: {sum(p.numel() for p in model.parameters()):,} parameters, {torch.get_num_threads()} threads")
    print(f"{'':24}{'batch':>6}{'all tok/s':>11}{'decode tok/s':>14}")
    if quick:
        compare((generate, continuous_batching, dynamic_cache, local_engine), 8, 8, repeats=1)
        compare_sessions(8, 8, repeats=1)
        return
    compare((continuous_batching,), 64, 8, repeats=1)  # minutes otherwise
    for batch in (64, 128):
        compare((generate, dynamic_cache, local_engine), batch, 30, repeats=4)
    compare_sessions(128, 30, repeats=4)


if __name__ == "__main__":
    main()
