"""The sizes of a model's parts, from its config.json or Megatron's arguments, and the sizes that FP8 allows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

FP8_BLOCK = 128
"""Rows and columns of one scale. slime's tools/convert_hf_to_fp8.py writes this with --block-size 128 128."""
_COMPARED = ("layers", "hidden", "ffn", "heads", "groups", "experts", "expert_ffn")


@dataclass(frozen=True, slots=True)
class Sizes:
    layers: int
    hidden: int
    ffn: int
    heads: int
    groups: int
    """The number of key-value heads."""
    channels: int
    """Channels of one head."""
    vocab: int
    untied: bool = False
    """Whether the output layer has its own weights."""
    experts: int = 0
    expert_ffn: int = 0
    shared_ffn: int = 0
    dense: int = 0
    """The number of layers without experts in a model with experts."""
    rank: int = 0
    """The rank of multi-head latent attention. 0 for a model without it."""
    rope: int = 0
    """Channels that latent attention adds for positions."""
    query_rank: int = 0
    linear: tuple[int, int] = (0, 0)
    """Widths of the keys and the values of linear attention."""

    @classmethod
    def of_config(cls, config: Mapping[str, Any]) -> Self | None:
        """Read the language model's part of config.json. None where sizes are missing."""
        read = _Reader(config)
        heads, hidden = read("num_attention_heads"), read("hidden_size")
        layers, ffn = read("num_hidden_layers"), read("intermediate_size") or read("moe_intermediate_size")
        if not (heads and hidden and layers and ffn):
            return None
        return cls(
            layers,
            hidden,
            ffn,
            heads,
            groups=read("num_key_value_heads") or heads,
            channels=read("v_head_dim") if read("kv_lora_rank") else read("head_dim") or hidden // heads,
            vocab=read("vocab_size"),
            untied=not config.get("tie_word_embeddings", False),
            **_expert_sizes(read, ffn),
            rank=read("kv_lora_rank"),
            rope=read("qk_rope_head_dim"),
            query_rank=read("q_lora_rank"),
            linear=(
                read("linear_num_key_heads") * read("linear_key_head_dim"),
                read("linear_num_value_heads") * read("linear_value_head_dim"),
            ),
        )

    @classmethod
    def of_args(cls, args: Any) -> Self | None:
        """Read Megatron's arguments, as slime's scripts/models/*.sh set them. None where they are missing."""

        def read(name: str) -> int:
            return int(getattr(args, name) or 0)

        heads, hidden, layers = read("num_attention_heads"), read("hidden_size"), read("num_layers")
        ffn, experts = read("ffn_hidden_size"), read("num_experts")
        if not (heads and hidden and layers and ffn):
            return None
        return cls(
            layers,
            hidden,
            ffn,
            heads,
            groups=(read("num_query_groups") if args.group_query_attention else 0) or heads,
            channels=read("kv_channels") or hidden // heads,
            vocab=read("vocab_size"),
            untied=bool(args.untie_embeddings_and_output_weights),
            experts=experts,
            expert_ffn=read("moe_ffn_hidden_size") if experts else 0,
            shared_ffn=read("moe_shared_expert_intermediate_size"),
            rank=read("kv_lora_rank") if args.multi_latent_attention else 0,
        )

    @property
    def expert_parameters(self) -> int:
        return 3 * self.hidden * self.expert_ffn * self.experts * (self.layers - self.dense)

    @property
    def dense_parameters(self) -> int:
        """About the number of parameters outside of experts. Linear attention counts as attention."""
        if self.rank:
            query, value = self.channels + self.rope, 2 * self.channels
            attention = self.heads * (self.hidden * (query + self.channels) + self.rank * value)
        else:
            attention = self.hidden * self.channels * 2 * (self.heads + self.groups)
        width = self.shared_ffn if self.experts else self.ffn
        each = attention + 3 * self.hidden * width
        embedding = self.vocab * self.hidden * (2 if self.untied else 1)
        return embedding + self.layers * each + 3 * self.hidden * self.ffn * self.dense

    @property
    def parameters(self) -> int:
        return self.dense_parameters + self.expert_parameters

    def differs(self, other: Sizes) -> list[str]:
        """Names of the sizes that both know and that differ."""
        unknown = set() if not (self.rank or other.rank) else {"groups"}
        if self.experts and other.experts:  # then Megatron's --ffn-hidden-size may be the experts'
            unknown.add("ffn")
        known = [name for name in _COMPARED if name not in unknown]
        return [name for name in known if getattr(self, name) != getattr(other, name)]

    def split_fp8_blocks(self, tensor: int, experts: int = 1, attention: int | None = None) -> Iterator[str]:
        """Parts that SGLang cannot split into whole FP8 blocks: the name, and the division.

        `tensor`, `experts` and `attention` are the ranks over which layers, experts and attention are spread.
        """
        for name, size, ranks in self._splits(tensor, max(1, tensor // experts), attention or tensor):
            if size and size / ranks % FP8_BLOCK:
                yield f"{name} {size} / {ranks} = {size / ranks:g}"

    def _splits(self, tensor: int, in_expert: int, attention: int) -> Iterator[tuple[str, int, int]]:
        if self.experts:
            yield "the experts' intermediate size", self.expert_ffn, in_expert
            yield "the shared expert's intermediate size", self.shared_ffn, tensor
        if self.dense or not self.experts:
            yield "the intermediate size", self.ffn, tensor
        yield "the attention's heads x channels", self.heads * self.channels, attention
        if self.rank:
            yield "the queries' heads x channels", self.heads * (self.channels + self.rope), attention
        else:
            yield "the keys' heads x channels", self.groups * self.channels, min(attention, self.groups)
        yield "the linear attention's keys", self.linear[0], attention
        yield "the linear attention's values", self.linear[1], attention


class _Reader:
    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config

    def __call__(self, *names: str) -> int:
        """The first of these keys that holds an integer. 0 if none does."""
        return next((value for name in names if type(value := self._config.get(name)) is int), 0)


def _expert_sizes(read: _Reader, ffn: int) -> dict[str, int]:
    """The sizes of experts in config.json; `ffn` is the size of the other layers."""
    experts = read("num_experts", "n_routed_experts", "num_local_experts")
    width = read("moe_intermediate_size") or ffn
    shared = read("shared_expert_intermediate_size") or read("n_shared_experts") * width
    if not experts:
        return {"shared_ffn": shared}
    return {"experts": experts, "expert_ffn": width, "shared_ffn": shared, "dense": read("first_k_dense_replace")}


def rotary_base(config: Mapping[str, Any]) -> float | None:
    """The base of the rotary position embedding. None if config.json does not name it."""
    inner = config.get("rope_parameters")
    base = inner.get("rope_theta") if isinstance(inner, Mapping) else None
    base = base if base is not None else config.get("rope_theta")
    return float(base) if isinstance(base, int | float) else None


def fp8_blocks(config: Mapping[str, Any]) -> bool:
    """Whether the checkpoint has one scale for each block of 128 x 128 weights."""
    quantization = config.get("quantization_config")
    return isinstance(quantization, Mapping) and quantization.get("weight_block_size") == [FP8_BLOCK, FP8_BLOCK]
