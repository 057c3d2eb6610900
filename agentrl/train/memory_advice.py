"""The report about memory before a run: the memory that the run needs, the free memory, and the options that would make
the run fit."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl._util.memory import free_ram
from agentrl.models import load_config
from agentrl.train.config import LoRAConfig, TrainConfig
from agentrl.train.memory import MemoryEstimate, MemoryInputs, Shape

log = logging.getLogger("agentrl")

_WORTH_SAYING = 10**9
_SHORTEST = 1024
"""The smallest length of an episode, in tokens, that the report proposes."""


@dataclass(frozen=True, slots=True)
class _Option:
    """An option that saves memory: the text for the user, and the function that sets the option in a configuration."""

    words: str
    apply: Callable[[TrainConfig], TrainConfig]


def memory_lines(config: TrainConfig, model: str, device: str) -> list[str]:
    """One or two lines about a run on a device (`cpu`, `cuda`), the last a warning if the run does not fit.

    Empty for a run of less than a gigabyte, and for a model that cannot be counted. Raises ConfigError if `model` has
    no readable configuration.
    """
    model_config = load_config(model)
    try:
        shape = Shape.of(model_config)
        return list(lines_about(config, shape, free_memory(device), on_gpu=device == "cuda"))
    except Exception:  # the boundary of foreign configurations: no run ends for want of arithmetic
        log.debug("memory cannot be predicted", exc_info=True)
        return []


def lines_about(config: TrainConfig, shape: Shape, free: int, *, on_gpu: bool) -> Iterator[str]:
    """The lines of `memory_lines` about a model of this shape. `free` is the number of free bytes."""
    plan = MemoryInputs.of(config, shape, on_gpu=on_gpu)
    need = MemoryEstimate.of(shape, plan)
    if need.peak - need.fixed < _WORTH_SAYING:
        return
    where = "on this GPU" if on_gpu else "in RAM"
    yield (
        f"memory, by arithmetic: learning {_gb(need.learning)} ({_parts(need)}), playing one episode of "
        f"{plan.sequence:,} tokens {_gb(need.rollout)}; {_gb(free)} free {where}"
    )
    if not need.fits(free):
        remedies = ways_to_fit(config, shape, free, on_gpu=on_gpu)
        then = (
            f"{' and '.join(remedies)} would make it fit" if remedies else "no option makes it fit; take a smaller one"
        )
        yield f"warning: this model does not fit {where}: {then}"
    elif (room := need.episodes(free)) < plan.at_once:
        remedy = "; more wait" if plan.engine == "beside" else f": if all become that long, set concurrency={room}"
        yield f"memory: room for {room} episodes of {plan.sequence:,} tokens at once{remedy}"


def ways_to_fit(config: TrainConfig, shape: Shape, free: int, *, on_gpu: bool) -> list[str]:
    """The texts of the options that make a run fit: the cheapest option that suffices alone, else the cheapest options
    that suffice together. Empty if no options suffice."""

    def fits(options: Sequence[_Option]) -> bool:
        changed = config
        for option in options:
            changed = option.apply(changed)
        return MemoryEstimate.of(shape, MemoryInputs.of(changed, shape, on_gpu=on_gpu)).fits(free)

    options = list(_options(config, shape, on_gpu=on_gpu))
    for option in options:
        if fits([option]):
            return [option.words]
    chosen: list[_Option] = []
    for option in options:
        chosen = [
            *(other for other in chosen if other.words.partition("=")[0] != option.words.partition("=")[0]),
            option,
        ]
        if fits(chosen):
            break
    else:
        return []
    for option in chosen[:-1]:
        if fits(less := [other for other in chosen if other is not option]):
            chosen = less
    return [option.words for option in chosen]


def _options(config: TrainConfig, shape: Shape, *, on_gpu: bool) -> Iterator[_Option]:
    """Options that may save memory, the cheapest first."""
    plan = MemoryInputs.of(config, shape, on_gpu=on_gpu)
    if config.gradient_checkpointing is False:
        yield _setting("gradient_checkpointing=true", gradient_checkpointing=True)
    if config.staleness:
        yield _setting("staleness=0", staleness=0)
    elif plan.engine == "beside" and on_gpu and not plan.sleeps:
        yield _setting("engine_config.sleep=true", engine_config={**config.engine_config, "sleep": True})
    if on_gpu and config.lora is None and config.optimizer == "adamw":
        yield _setting("optimizer=adamw_8bit", optimizer="adamw_8bit")
    if config.lora is None:
        yield _setting("lora.rank=16", lora=LoRAConfig(rank=16, alpha=32))
    if config.dtype == "float32":
        yield _setting("dtype=bfloat16", dtype="bfloat16")
    tokens = plan.sequence
    if config.micro_batch_tokens > tokens:
        yield _setting(f"micro_batch_tokens={tokens}", micro_batch_tokens=tokens)
    while (tokens := 1 << (tokens - 1).bit_length() - 1) >= _SHORTEST:
        limits = {**config.limits, "context": tokens}
        yield _setting(
            f"limits.context={tokens}", limits=limits, micro_batch_tokens=min(config.micro_batch_tokens, tokens)
        )


def _setting(words: str, **values: Any) -> _Option:
    return _Option(words, lambda config: config.model_copy(update=values))


def _parts(need: MemoryEstimate) -> str:
    """The parts of the memory of learning as text, the largest first."""
    backward = need.backward >= need.stepping
    parts = {
        "weights": need.weights,
        "float32 weights": need.masters,
        "optimizer": need.optimizer,
        "KL's reference": need.reference,
        "gradients": need.gradients if backward else need.stepping,
        "activations": need.activations + need.logits if backward else 0,
        "reserved in gaps": need.gaps,
        "engine": 0 if need.asleep or not need.engine else need.engine + need.cache,
        "CUDA": need.fixed,
    }
    ordered = sorted(parts.items(), key=lambda part: -part[1])
    return ", ".join(f"{name} {size / 1e9:.1f}" for name, size in ordered if size >= 5e7)


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f} GB"


def free_memory(device: str) -> int:
    """The free bytes of a device now; for `cpu` and `mps` of RAM, within this container's limit."""
    if device == "cuda":
        import torch

        return int(torch.cuda.mem_get_info()[0])
    return free_ram()
