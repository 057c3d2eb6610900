"""Estimates the memory of episodes of the configured length, from the model's config.json."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agentrl._util.findings import Finding, note, unchecked
from agentrl.slime.check.setup import Setup

_GIB = 1024**3
_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


def memory(setup: Setup) -> Iterator[Finding]:
    model, context = setup.model, setup.context
    if not model or not context:
        missing = "the model's folder is not here" if not model else "--rollout-max-context-len is not given"
        yield unchecked("memory", missing)
        return
    if (per_token := kv_bytes(model, setup.args.sglang_kv_cache_dtype)) is None:
        yield unchecked("memory", "config.json does not give the numbers of layers and heads")
        return
    yield _kv_cache(setup, per_token[0], per_token[1], context)
    if training := _training(setup, context):
        yield training


def kv_bytes(model: Mapping[str, Any], cache_dtype: str | None) -> tuple[int, str] | None:
    """Bytes of KV cache for one token in all layers, and the formula. None if config.json lacks the sizes."""
    layers = model.get("num_hidden_layers")
    if not layers:
        return None
    if kinds := model.get("layer_types"):
        layers = sum(kind != "linear_attention" for kind in kinds)  # the state of linear attention does not grow
    size = _value_bytes(model, cache_dtype)
    if rank := model.get("kv_lora_rank"):  # multi-head latent attention keeps one compressed vector a token
        width = rank + model.get("qk_rope_head_dim", 0)
        return layers * width * size, f"{layers} layers x {width} x {size} bytes"
    heads, width = model.get("num_attention_heads"), _head_width(model)
    if not heads or not width:
        return None
    kv_heads = model.get("num_key_value_heads") or heads
    return 2 * layers * kv_heads * width * size, f"2 x {layers} layers x {kv_heads} KV heads x {width} x {size} bytes"


def _head_width(model: Mapping[str, Any]) -> int | None:
    heads, hidden = model.get("num_attention_heads"), model.get("hidden_size")
    return model.get("head_dim") or (hidden // heads if heads and hidden is not None else None)


def _value_bytes(model: Mapping[str, Any], cache_dtype: str | None) -> int:
    if (cache_dtype or "").startswith("fp8"):
        return 1
    return _BYTES.get(str(model.get("dtype") or model.get("torch_dtype")), 2)


def _kv_cache(setup: Setup, per_token: int, formula: str, context: int) -> Finding:
    per_episode = per_token * context
    text = f"KV cache: about {_size(per_episode)} for an episode of {context} tokens ({formula} a token)"
    if not (running := episodes_at_once(setup)):
        return note(text)
    text += f"; all {running} that may run at once, at full length: {_size(per_episode * running)}"
    if gpus := setup.gpus:
        text += f", {_size(per_episode * running / gpus)} on each of {gpus} GPUs"
    return note(f"{text}. What does not fit waits: lower --sglang-server-concurrency if turns are slow")


def episodes_at_once(setup: Setup) -> int | None:
    """The number of episodes that run at once: slime's slots, or fewer if a synchronous rollout has fewer episodes."""
    args, engines = setup.args, setup.engines
    slots, samples = args.sglang_server_concurrency, args.n_samples_per_prompt
    prompts = args.over_sampling_batch_size or args.rollout_batch_size
    if not (engines and slots and prompts and samples):
        return None
    most: int = slots * engines
    return most if setup.fully_async else min(most, prompts * samples)


def _training(setup: Setup, context: int) -> Finding | None:
    """A note about the memory of the longest micro-batch on a GPU. The formula of activations is from Korthikanti et
    al. 2022 (selective recomputation)."""
    model, args = setup.model, setup.args
    vocabulary, hidden, layers = (model.get(key) for key in ("vocab_size", "hidden_size", "num_hidden_layers"))
    if not (vocabulary and hidden and layers):
        return None
    tensor = args.tensor_model_parallel_size or 1
    tokens = max(context // (args.context_parallel_size or 1), args.max_tokens_per_gpu or 0)
    logits = tokens * vocabulary * 4 / tensor
    recomputed = args.recompute_granularity == "full"
    activations = tokens * hidden * layers * (2 if recomputed else 34) / tensor
    return note(
        f"training: about {_size(2 * logits)} on a GPU for the logits of {tokens} tokens and their gradient "
        f"(2 x tokens x {vocabulary} x 4 bytes / tensor parallel {tensor}), and {_size(activations)} of activations "
        f"({'2' if recomputed else '34'} bytes x tokens x {hidden} x {layers} layers / {tensor}), beside the weights"
    )


def _size(value: float) -> str:
    gib = value / _GIB
    return f"{gib:.0f} GiB" if gib >= 10 else f"{gib:.1f} GiB" if gib >= 0.1 else f"{value / 1024**2:.0f} MiB"
