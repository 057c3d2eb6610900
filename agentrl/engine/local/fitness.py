"""Checks whether LocalEngine can run a model. Each engine checks its model when created, so that log-probs are
right."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import torch

from agentrl.engine.local.kv_cache import CacheBlock, run
from agentrl.errors import ConfigError

_WINDOWS = ("sliding_window", "attention_chunk_size", "window_size", "attention_window")
"""Keys of the configuration that give the number of tokens that a layer of local attention looks back."""

_REMEDY = "serve the model with SGLang and use the engine sglang"

_TOLERANCE: Mapping[torch.dtype, float] = {torch.float32: 1e-3, torch.float16: 0.03, torch.bfloat16: 0.2}
"""Type of the weights -> the largest allowed difference of two logits. The unit is the standard deviation of the
logits."""


def context_length(config: Any, requested: int | None) -> int:
    """The most tokens of a sequence. Raises ConfigError if the model changes attention or rotation within this
    length."""
    holds: int | None = getattr(config, "max_position_embeddings", None)
    length = holds if requested is None else requested
    if length is None:
        raise ConfigError("the model's config has no max_position_embeddings: give LocalEngine max_context")
    if length < 2:
        raise ConfigError(f"max_context is {length}; it must hold a prompt and a response: 2 at least")
    if holds is not None and length > holds:
        raise ConfigError(f"max_context is {length}, but the model holds only {holds} positions")
    for reaches, feature in chain(_windows(config), _rotations(config)):
        if length > reaches:
            raise ConfigError(
                f"LocalEngine batches full attention only, and {feature}: "
                f"set max_context to {reaches} or less, or {_REMEDY}"
            )
    return length


def check_attention(config: Any) -> None:
    """Raises ConfigError for kernels and layers that cannot work with a CacheBlock."""
    implementation = getattr(config, "_attn_implementation", "sdpa")
    if implementation not in ("sdpa", "eager"):
        raise ConfigError(f"LocalEngine cannot use {implementation}: load the model with attn_implementation='sdpa'")
    supported = {"full_attention", "sliding_attention", "chunked_attention"}
    if others := set(getattr(config, "layer_types", None) or ()) - supported:
        raise ConfigError(f"LocalEngine cannot batch layers of {', '.join(sorted(others))}: {_REMEDY}")


def _windows(config: Any) -> Iterator[tuple[int, str]]:
    """(number of tokens that a layer of local attention looks back, reason as text) for each kind of such layers."""
    kinds = {*(getattr(config, "layer_types", None) or ()), *(getattr(config, "attention_layers", None) or ())}
    if kinds and kinds <= {"full_attention", "global"}:
        return
    for name in _WINDOWS:
        window = getattr(config, name, None)
        if isinstance(window, int) and getattr(config, "use_sliding_window", True) is not False:
            yield window, f"this model looks back {window} tokens ({name})"


def _rotations(config: Any) -> Iterator[tuple[int, str]]:
    """(length up to which the rotation is fixed, reason as text) for each such limit."""
    ropes = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    for rope in (ropes, *ropes.values()):
        if isinstance(rope, Mapping) and "longrope" in (rope.get("rope_type"), rope.get("type")):
            reaches = int(rope.get("original_max_position_embeddings") or config.original_max_position_embeddings)
            yield (
                reaches,
                f"this model changes the rotation of a whole batch once a row exceeds {reaches} tokens (longrope)",
            )


def tolerance(model: Any) -> float:
    """The largest allowed difference of two logits of the model, in standard deviations of the logits."""
    return _TOLERANCE.get(model.dtype, 0.2)


@torch.inference_mode()
def measure(model: Any, context: int) -> int:
    """Compare a few tokens through the cache with a plain forward pass. Returns the bytes of the cache for a token.

    The test has two rows of different length, and decodes the last three tokens of each row singly. Raises ConfigError
    if the results differ.
    """
    config = model.config.get_text_config()
    length = _probe_length(config, context)
    lengths = (length, max(length - 5, 2))
    vocabulary = config.vocab_size
    ids = [[(17 + row * 7 + 29 * i * i) % vocabulary for i in range(length)] for row in range(2)]
    block, decoded = CacheBlock(), min(3, lengths[1] - 1)
    try:
        plain = model(input_ids=torch.tensor(ids, device=model.device), use_cache=False).logits.float()
        block.fit(2, length, 2)
        starts = [n - decoded for n in lengths]
        padded = [row[:start] + [0] * (starts[0] - start) for row, start in zip(ids, starts, strict=True)]
        run(model, block, 0, padded, [0, 0], starts[0], context, {})
        off = 0.0
        for step in range(decoded):
            positions = [start + step for start in starts]
            cached = run(
                model,
                block,
                0,
                [[ids[row][positions[row]]] for row in range(2)],
                positions,
                positions[0] + 1,
                context,
                {},
            ).float()
            expected = plain[[0, 1], positions]
            off = max(off, float((cached - expected).abs().max() / expected.std()))
    except Exception as exc:  # the model's own code may accept neither our positions nor our cache
        words = " ".join(f"{type(exc).__name__}: {exc}".split())
        raise ConfigError(f"LocalEngine cannot batch {type(model).__name__}: {words:.300}; {_REMEDY}") from exc
    if not bool(plain.isfinite().all()):
        raise ConfigError(f"the logits of {type(model).__name__} are not finite: are its weights damaged, or NaN?")
    if off > tolerance(model):
        raise ConfigError(
            f"LocalEngine cannot batch {type(model).__name__}: its logits through a cache are off by {off:.2g} "
            f"standard deviations from a plain forward pass; {_REMEDY}"
        )
    return block.measure()


def _probe_length(config: Any, context: int) -> int:
    """The number of tokens in the test: a few, or more if the model has a small window."""
    windows = [window for name in _WINDOWS if isinstance(window := getattr(config, name, None), int)]
    small = max((window for window in windows if window <= 256), default=0)
    return min(context, max(12, small + 6))
