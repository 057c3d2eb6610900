"""The memory that a run needs on its device, computed without loading weights and without measuring.

Training all weights in bfloat16 takes 16 bytes a parameter: the weight (2), the float32 copy (4), two moments of Adam
(8), and the gradient (2). With LoRA, a frozen weight takes 2 bytes, and each of the few parameters of the adapter 16.
In addition, learning holds activations, and playing episodes needs the engine's weights, its keys and values. On a GPU
the allocator reserves more than it allocates; other programs on the card see the reserved memory.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeAlias

from agentrl.engine.sglang.training.trained import ALONE_SHARE, BESIDE_SHARE
from agentrl.train.checkpointing import wants_checkpointing
from agentrl.train.config import TrainConfig
from agentrl.train.learner import STEP_BYTES
from agentrl.train.log_probs import PIECE_BYTES
from agentrl.train.packing import MOST_READ
from agentrl.types import Limits

Place: TypeAlias = Literal["inside", "apart", "beside", "elsewhere"]

_PROMPT_TOKENS = 1024
"""Assumed number of tokens of a prompt, if the limits bound only the later tokens."""
_PREFILL_TOKENS = 4096
"""The number of prompt tokens that an engine reads in a pass."""
_LOGITS_COPIES = 5
"""The memory of float32 logits with their copies and gradients, as a multiple of the memory of the logits."""
_GPU_BYTES = 1_000_000_000
"""Bytes that CUDA and its kernels take on a GPU."""
_GAPS = 0.17
"""The memory that torch's allocator on a GPU reserves beyond the temporary memory of a pass, as a share of the
temporary memory. Measured on an H100 with Qwen3 shapes of 0.6 to 4 billion parameters: 14 to 17 % with LoRA, less if
all weights are trained."""

_SAVED = {(True, False): (4, 3, 4), (False, False): (3, 2, 4), (True, True): (3, 2, 4), (False, True): (2, 1, 4)}
"""(half-precision weights, LoRA) -> the number of values that autograd saves in a layer for a token: for each channel
of a norm and the linear layers after it, for each channel of a norm of heads, and for each channel of the feed-forward
part. Counted in Llama and Qwen3."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a model that determine the memory."""

    parameters: int
    adapted: Mapping[str, int]
    """Layer that LoRA can adapt -> the number of parameters that LoRA of rank 1 adds."""
    layers: int
    attending: int
    """The number of layers that store keys and values of every token."""
    hidden: int
    queries: int
    """The width of a token's queries: heads times channels of a head."""
    keys: int
    """The width of a token's keys, and of its values: key-value heads times channels of a head."""
    ffn: int
    """The width of the feed-forward part for a token. With experts, the sum over all experts that a token uses."""
    vocabulary: int
    context: int
    normed_heads: bool
    """Whether queries and keys are normed."""

    @classmethod
    def of(cls, config: Any) -> Self:
        """Read a transformers configuration. To count the parameters, the model is created without memory for
        weights."""
        import torch
        from transformers import AutoModelForCausalLM

        from agentrl.models.folder import quiet_transformers

        with quiet_transformers(), torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
        text = config.get_text_config()
        heads = text.num_attention_heads
        channels = getattr(text, "head_dim", None) or text.hidden_size // heads
        kinds = getattr(text, "layer_types", None) or ["full_attention"] * text.num_hidden_layers
        return cls(
            parameters=sum(parameter.numel() for parameter in model.parameters()),
            adapted=dict(_adapted(model)),
            layers=text.num_hidden_layers,
            attending=sum("linear" not in kind for kind in kinds),
            hidden=text.hidden_size,
            queries=heads * channels,
            keys=(getattr(text, "num_key_value_heads", None) or heads) * channels,
            ffn=_ffn(text),
            vocabulary=text.vocab_size,
            context=getattr(text, "max_position_embeddings", None) or 1 << 20,
            normed_heads=any(name.endswith("q_norm") for name, _ in model.named_modules()),
        )

    def adapter(self, rank: int, targets: str | Sequence[str]) -> int:
        """The number of parameters of a LoRA adapter."""
        return rank * sum(added for name, added in self.adapted.items() if _is_target(name, targets))

    def cache_bytes(self, itemsize: int) -> int:
        """Bytes of the keys and values of a token in all layers. `itemsize` is the bytes of a value."""
        return 2 * self.attending * self.keys * itemsize

    def layer_bytes(self, itemsize: int, rank: int) -> int:
        """Bytes of a layer for a token in the backward pass: the values that autograd saved, and the largest
        gradients."""
        norms, head_norms, ffn = _SAVED[itemsize < 4, rank > 0]
        both = self.queries + self.keys
        saved = 2 * norms * self.hidden + 2 * both + ffn * self.ffn + (head_norms * both if self.normed_heads else 0)
        gradients = 3 * self.ffn + 2 * self.hidden
        return itemsize * (saved + gradients + 7 * rank)

    def shared_bytes(self, itemsize: int) -> int:
        """The most extra bytes of a layer for a token of a full pack: keys and values of the rows that share the
        token."""
        return 2 * self.keys * itemsize * MOST_READ


@dataclass(frozen=True, slots=True)
class MemoryInputs:
    """The settings of a TrainConfig that affect memory."""

    itemsize: int
    """Bytes of a weight in the model."""
    sequence: int
    """The number of tokens of the longest episode."""
    pack: int
    """The most tokens of a pack. A longer episode is read alone."""
    at_once: int
    """The number of episodes in flight."""
    checkpointing: bool | None
    rank: int
    """The rank of LoRA. 0: all weights are trained."""
    targets: str | Sequence[str]
    moments: int
    """Bytes of Adam's moments for a trained parameter."""
    reference: bool
    """Whether the reference of KL is a separate copy of the weights."""
    engine: Place
    """The memory of the engine. inside: the engine samples from the learner's weights. apart: the engine has separate
    weights on the same device, and takes as much memory as needed. beside: the engine has separate weights on the same
    device, and takes a share of the free memory. elsewhere: the engine takes no memory of the device."""
    sleeps: bool
    on_gpu: bool

    @property
    def read(self) -> int:
        """The most tokens that the learner reads at once."""
        return max(self.sequence, self.pack)

    @classmethod
    def of(cls, config: TrainConfig, shape: Shape, *, on_gpu: bool) -> Self:
        sequence = _longest(config, shape.context)
        settings = config.engine_config
        place: Place = "beside" if config.engine == "sglang" and not settings.get("url") else "elsewhere"
        sleep = settings.get("sleep", "auto") if config.staleness == 0 else False
        return cls(
            itemsize=4 if config.dtype == "float32" else 2,
            sequence=sequence,
            pack=config.micro_batch_tokens,
            at_once=min(config.concurrency, config.prompts_per_step * config.group_size),
            checkpointing=config.gradient_checkpointing,
            rank=config.lora.rank if config.lora else 0,
            targets=config.lora.targets if config.lora else "all-linear",
            moments=2 if config.optimizer == "adamw_8bit" else 8,
            reference=config.kl_coef > 0 and config.lora is None,
            engine=("apart" if config.staleness else "inside") if config.engine in ("local", "auto") else place,
            sleeps=place == "beside" and on_gpu and sleep in ("auto", True),
            on_gpu=on_gpu,
        )


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """The bytes that a run needs on its device, by purpose."""

    weights: int
    masters: int
    """Bytes of the float32 copies of the weights in training."""
    optimizer: int
    reference: int
    gradients: int
    """Bytes of the gradients while they add up over the passes of an update."""
    stepping: int
    """Bytes of the gradients while the optimizer steps, and of a few float32 gradients: float32 copies are stepped a
    few at a time. There are no activations at that time."""
    activations: int
    logits: int
    engine: int
    """Bytes of the engine's separate weights."""
    cache: int
    """Bytes of the keys and values of an episode of the greatest length."""
    prefill: int
    fixed: int
    asleep: bool
    """Whether the engine frees its memory while the learner learns."""
    shares: bool
    """Whether the engine takes a share of the free memory, and plays as many episodes as fit into this share."""

    @classmethod
    def of(cls, shape: Shape, plan: MemoryInputs) -> Self:
        size, count = plan.itemsize, shape.parameters
        adapter = shape.adapter(plan.rank, plan.targets) if plan.rank else 0
        trained = adapter or count
        largest = shape.hidden * shape.vocabulary
        gradients = trained * size
        in_float32 = min(4 * trained, max(STEP_BYTES, 0 if adapter else 4 * largest))
        head = largest * size  # its gradient, before it is added to those of other pieces
        pass_bytes = (4 * shape.hidden + 3 * shape.ffn) * size * min(_PREFILL_TOKENS, plan.sequence)
        return cls(
            weights=(count + adapter) * size,
            masters=4 * trained if size < 4 else 0,
            optimizer=plan.moments * trained,
            reference=count * size if plan.reference else 0,
            gradients=gradients,
            stepping=gradients + (in_float32 if size < 4 else 0),
            activations=_activations(shape, plan, count + adapter),
            logits=_LOGITS_COPIES * min(PIECE_BYTES, 4 * plan.read * shape.vocabulary) + (0 if adapter else head),
            engine=count * size if plan.engine in ("apart", "beside") else 0,
            cache=shape.cache_bytes(size) * plan.sequence if plan.engine != "elsewhere" else 0,
            prefill=pass_bytes if plan.engine != "elsewhere" else 0,
            fixed=_GPU_BYTES if plan.on_gpu else 0,
            asleep=plan.sleeps,
            shares=plan.engine == "beside",
        )

    @property
    def resident(self) -> int:
        """Bytes that are always allocated."""
        return self.weights + self.masters + self.optimizer + self.reference + self.fixed

    @property
    def learning(self) -> int:
        """The peak in bytes while the learner learns."""
        awake = 0 if self.asleep or not self.engine else self.engine + self.cache
        return self.resident + awake + self.passing

    @property
    def backward(self) -> int:
        """The peak in bytes of forward and backward passes, above `resident`."""
        return self.gradients + self.activations + self.logits

    @property
    def passing(self) -> int:
        """The temporary bytes of learning; on a GPU with `gaps`."""
        return max(self.backward, self.stepping) + self.gaps

    @property
    def gaps(self) -> int:
        """The bytes that the allocator reserves beyond its allocations; 0 on a CPU."""
        return int(_GAPS * max(self.backward, self.stepping)) if self.fixed else 0

    @property
    def rollout(self) -> int:
        """The peak in bytes while an episode of the greatest length is played."""
        return self.resident + self.engine + self.cache + self.prefill

    @property
    def peak(self) -> int:
        return max(self.learning, self.rollout)

    def fits(self, memory: int) -> bool:
        """Whether the run fits into `memory`, the free bytes of the device before the run."""
        free = memory - self.resident
        if self.engine and not self.asleep:
            free -= self._engine_room(free) if self.shares else self.engine + self.cache + self.prefill
        return self.passing <= free and self.rollout <= memory and self.episodes(memory) > 0

    def episodes(self, memory: int) -> int:
        """The number of longest episodes whose keys and values fit at once. `memory` is the free bytes before the
        run."""
        if not self.cache:
            return 1 << 20
        free = memory - self.resident
        room = self._engine_room(free) - self.engine if self.engine else free - self.prefill
        return max(room // self.cache, 0)

    def _engine_room(self, free: int) -> int:
        """The bytes for an engine with separate weights. `free` is the bytes that the trainer's permanent memory
        leaves."""
        if not self.shares:
            return free - max(self.backward, self.stepping) - self.prefill
        return int((ALONE_SHARE if self.asleep else BESIDE_SHARE) * free)


def _activations(shape: Shape, plan: MemoryInputs, parameters: int) -> int:
    """Bytes of the activations of a single long episode, or of a pack whose episodes share their beginnings. With
    gradient checkpointing these are the inputs of all layers, and the inside of a single layer. Without, the inside of
    all layers."""
    alone = shape.layer_bytes(plan.itemsize, plan.rank)
    sizes = (plan.sequence, alone), (plan.pack, alone + shape.shared_bytes(plan.itemsize))
    if wants_checkpointing(plan.checkpointing, parameters):
        return max(tokens * (shape.layers * shape.hidden * plan.itemsize + layer) for tokens, layer in sizes)
    return max(tokens * shape.layers * layer for tokens, layer in sizes)


def _longest(config: TrainConfig, context: int) -> int:
    limits = Limits.of(config.limits)
    bounds: list[float] = [context, limits.context or math.inf, config.engine_config.get("max_context") or math.inf]
    if limits.tokens:
        bounds.append(limits.tokens + _PROMPT_TOKENS)
    if limits.max_tokens_per_turn and limits.observation_tokens:
        bounds.append(limits.turns * (limits.max_tokens_per_turn + limits.observation_tokens) + _PROMPT_TOKENS)
    return int(min(bounds))


def _adapted(model: Any) -> Iterator[tuple[str, int]]:
    """The layers that peft adapts with all-linear, each with the parameters that a rank adds. Such layers are linear
    layers without the head, and experts with their routers."""
    import torch

    head = model.get_output_embeddings()
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and module is not head:
            yield name, module.in_features + module.out_features
        elif type(module).__name__.endswith("Router"):
            yield name, sum(module.weight.shape)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 3:  # the weights of all experts; peft doubles the rank of two that are one
            yield name, parameter.shape[0] * sum(parameter.shape[1:]) * (2 if name.endswith("gate_up_proj") else 1)


def _ffn(text: Any) -> int:
    experts = getattr(text, "num_experts_per_tok", None)
    if not experts:
        return int(text.intermediate_size)
    width = getattr(text, "moe_intermediate_size", None) or text.intermediate_size
    shared = getattr(text, "shared_expert_intermediate_size", None) or 0
    shared += (getattr(text, "n_shared_experts", None) or 0) * width
    return int(experts * width + shared)


def _is_target(name: str, targets: str | Sequence[str]) -> bool:
    """Whether peft adapts a layer. `targets` is all-linear, a regular expression or a list of names."""
    if isinstance(targets, str):
        return targets == "all-linear" or re.fullmatch(targets, name) is not None
    return any(name == target or name.endswith(f".{target}") for target in targets)
