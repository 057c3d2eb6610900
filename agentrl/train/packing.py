"""Rows end to end in a single sequence: no padding, and a beginning that several rows share is computed once.

Except for attention, a transformer treats each token alone, so a pass can run over all rows at once. Attention runs row
by row here, with torch's causal kernels, so a mask over the whole pack is never made. A hidden state depends on earlier
tokens only. So rows that begin alike, such as a group's rows with the same prompt, need the states of the beginning
once; the gradient is the sum over the rows. arXiv 2511.00413 does the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from inspect import signature
from itertools import groupby, pairwise
from typing import Any, Literal, Protocol, Self, TypeAlias
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from agentrl.models.adapter import without_adapter
from agentrl.train.log_probs import alike, vocabulary

log = logging.getLogger("agentrl")

LEAST_SHARED = 8
"""The number of tokens from which a beginning is worth sharing."""
MOST_READ = 4
"""The most tokens of a pack's rows, as a multiple of the token budget. Here shared beginnings count in each row:
attention holds queries, keys and values of all these tokens."""
MOST_MASKED = 1 << 24
"""The most elements of the attention mask of a row. A row that shares a beginning needs a mask [its later tokens, all
its tokens]."""
_NAME = "agentrl_packed"

Packing: TypeAlias = Literal["varlen", "rows"]
"""How a pack's attention is computed. varlen: by a single kernel that gets the bounds of the rows. rows: row by row."""
Mask: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""A function of (batch, head, query, key) that tells whether the query may see the key, as transformers defines
masks."""


class Beginning(Protocol):
    """A beginning of rows whose keys and values are computed in a separate pass; see `agentrl.train.stems`."""

    row: tuple[int, ...]

    def keep(self, layer: Any, key: Tensor, value: Tensor) -> None:
        """Store a layer's keys and values [1, heads, tokens, channels], without those of earlier beginnings."""
        ...

    def before(self, layer: Any) -> list[tuple[Tensor, Tensor]]:
        """A layer's keys and values of all tokens of `row`, in order. Each pair has the tokens of a beginning."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Pack:
    """Rows as a single sequence of T tokens. A row has N tokens, including the tokens shared with the row before."""

    input_ids: Tensor
    """The token ids [1, T]."""
    position_ids: Tensor
    """The index [1, T] of each token in its row."""
    lengths: tuple[tuple[int, int], ...]
    """For each row, in the pack's order: the number of tokens that only this row adds to the pack, and N."""
    rows: Tensor | None
    """The indices in the pack of all rows' tokens, row after row; the shape is [sum of N]. None: no tokens are shared,
    so the rows are the pack."""
    ends: tuple[Tensor, Tensor] | None
    """Two int32 tensors [rows + 1] for a varlen kernel: the cumulative sums of the first and of the second of
    `lengths`. None: attention is computed row by row."""
    after: Beginning | None = None
    """The beginning of all rows, whose keys and values were computed earlier. `rows` counts the tokens of this
    beginning first, T does not count them."""
    keeps: Beginning | None = None
    """The store that gets the keys and values of this pack; None: they are not stored."""

    @classmethod
    def of(
        cls,
        rows: Sequence[tuple[int, ...]],
        device: torch.device,
        how: Packing = "rows",
        *,
        after: Beginning | None = None,
        keeps: Beginning | None = None,
    ) -> tuple[Self, list[Tensor]]:
        """A pack, and for each row the indices [N] of its tokens. The indices count the tokens of `after` first, which
        begin every row. A repeated row is read once."""
        past = 0 if after is None else len(after.row)
        order = sorted(range(len(rows)), key=lambda number: rows[number])
        shared = [
            max(past, shared_length) for shared_length in shared_beginnings([rows[number] for number in order], how)
        ]
        if not any(shared):
            order.sort(key=lambda number: len(rows[number]))
        places: list[Tensor] = [torch.arange(past)] * len(rows)
        tokens, positions, before = list[int](), list[int](), torch.arange(past)
        for number, shared_length in zip(order, shared, strict=True):
            row = rows[number]
            new = torch.arange(past + len(tokens), past + len(tokens) + len(row) - shared_length)
            before = places[number] = torch.cat([before[:shared_length], new])
            tokens += row[shared_length:]
            positions += range(shared_length, len(row))
        new_lengths = [
            (number, len(rows[number]) - shared_length) for number, shared_length in zip(order, shared, strict=True)
        ]
        lengths = tuple((new, len(rows[number])) for number, new in new_lengths if new)
        ends = (torch.tensor([0, *some]).cumsum(0).to(device, torch.int32) for some in zip(*lengths, strict=True))
        pack = cls(
            torch.tensor([tokens], device=device),
            torch.tensor([positions], device=device),
            lengths,
            torch.cat([places[number] for number, new in new_lengths if new]).to(device) if any(shared) else None,
            (next(ends), next(ends)) if how == "varlen" else None,
            after,
            keeps,
        )
        return pack, places

    def inputs(self) -> dict[str, Tensor]:
        """Arguments of the model. The mask is all ones, which keeps transformers from looking for packed sequences."""
        ones = torch.ones_like(self.input_ids)
        return {"input_ids": self.input_ids, "position_ids": self.position_ids, "attention_mask": ones}

    def spread(self, states: Tensor) -> Tensor:
        """Copy the states of the pack's T tokens [T, heads, channels] to each row that uses the tokens.

        Returns the states of the rows, row after row: [sum of N, heads, channels]. The copy is an embedding lookup. The
        backward pass of a lookup is fast on a CPU, and on a GPU it adds gradients in the same order in each run.
        """
        if self.rows is None:
            return states
        return F.embedding(self.rows, states.reshape(len(states), -1)).view(-1, *states.shape[1:])


def shared_beginnings(rows: Sequence[tuple[int, ...]], how: Packing, *, least: int = LEAST_SHARED) -> list[int]:
    """For each row of sorted rows, the number of tokens shared with the row before; 0 for fewer than `least` tokens."""
    lengths = [0][: len(rows)]
    for before, row in pairwise(rows):
        low, high = 0, min(len(before), len(row))
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if before[low:middle] == row[low:middle] else (low, middle - 1)
        masked = 0 if how == "varlen" else (len(row) - low) * len(row)
        lengths.append(low if low >= least and masked <= MOST_MASKED else 0)
    return lengths


@dataclass(slots=True, eq=False)
class _Plan:
    """The argument that layers get in place of a mask: the pack, and the tokens of the same row that a token may
    see."""

    pack: Pack
    mask: Mask
    window: int | None
    """The length of a row up to which each token sees all earlier tokens. None: so do tokens in rows of any length."""
    _made: dict[tuple[int, int], Tensor] = field(default_factory=dict)

    def suits(self, sliding_window: int | None) -> bool:
        """Whether a varlen kernel works: tokens see their whole row, or a window that moves with the token."""
        return self.window in (None, sliding_window) or all(whole <= self.window for _, whole in self.pack.lengths)

    def of(self, queries: int, whole: int, like: Tensor) -> Tensor | None:
        """The mask [1, 1, queries, whole] to be added to the scores of the last `queries` tokens of a row with `whole`
        tokens. None: causal attention needs no mask."""
        if queries == whole and (self.window is None or whole <= self.window):
            return None
        if (queries, whole) not in self._made:
            places = torch.arange(whole, device=like.device)
            zero = torch.zeros_like(places[0])
            seen = self.mask(zero, zero, places[whole - queries :, None], places)
            self._made[queries, whole] = torch.zeros_like(seen, dtype=like.dtype).masked_fill(~seen, -torch.inf)[
                None, None
            ]
        return self._made[queries, whole]


_running: ContextVar[Pack | None] = ContextVar("running", default=None)
"""The pack that the running forward pass reads; None outside of such a pass."""


def _mask(*args: Any, **kwargs: Any) -> Any:
    """Replaces transformers' function that creates masks."""
    if (pack := _running.get()) is None:
        return sdpa_mask(*args, **kwargs)
    if kwargs.get("use_vmap"):
        raise ValueError("the model changes its mask")
    return _Plan(pack, kwargs["mask_function"], kwargs.get("local_size"))


def _attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **kwargs: Any
) -> tuple[Tensor, Any]:
    """Replaces transformers' function that computes attention: row by row, rows of equal length together."""
    if not isinstance(attention_mask, _Plan):
        whole: tuple[Tensor, Any] = sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
        return whole
    if other := [name for name in ("position_bias", "softcap", "s_aux") if kwargs.get(name) is not None]:
        raise ValueError(f"the model's attention has {other[0]}")
    if attention_mask.pack.keeps is not None:
        attention_mask.pack.keeps.keep(module, key, value)
    if attention_mask.pack.after is not None:
        past = attention_mask.pack.after.before(module)
        key, value = (torch.cat(states, 2) for states in zip(*past, (key, value), strict=True))
    if attention_mask.pack.ends is not None and attention_mask.suits(kwargs.get("sliding_window")):
        return _at_once(query, key, value, attention_mask, kwargs.get("scaling")), None
    return _row_by_row(module, query, key, value, attention_mask, kwargs), None


def _row_by_row(module: Any, query: Tensor, key: Tensor, value: Tensor, plan: _Plan, kwargs: dict[str, Any]) -> Tensor:
    """Attention row by row. Neighbouring rows of equal length are computed together."""
    groups = [(new, whole, len(list(same))) for (new, whole), same in groupby(plan.pack.lengths)]
    queries = torch.split(query[0].transpose(0, 1), [new * n for new, _, n in groups])
    keys, values = (
        torch.split(plan.pack.spread(states[0].transpose(0, 1)), [whole * n for _, whole, n in groups])
        for states in (key, value)
    )
    outputs = []
    for (new, length, n), *states in zip(groups, queries, keys, values, strict=True):
        batch = [part.view(n, -1, *part.shape[1:]).transpose(1, 2) for part in states]
        outputs.append(sdpa_attention_forward(module, *batch, plan.of(new, length, query), **kwargs)[0].flatten(0, 1))
    return torch.cat(outputs)[None]


def _at_once(query: Tensor, key: Tensor, value: Tensor, plan: _Plan, scaling: float | None) -> Tensor:
    """Attention of all rows in a single kernel. The queries of a row belong to the last tokens of the row."""
    pack = plan.pack
    assert pack.ends is not None
    longest = [max(lengths) for lengths in zip(*pack.lengths, strict=True)]
    states = query[0].transpose(0, 1), *(pack.spread(part[0].transpose(0, 1)) for part in (key, value))
    window = (-1 if plan.window is None else plan.window - 1, 0)
    kernel = varlen_kernel()
    assert kernel is not None
    return kernel(*(part.contiguous() for part in states), *pack.ends, *longest, scaling, window)[None]


@cache
def varlen_kernel() -> Callable[..., Tensor] | None:
    """flash-attn's attention kernel for rows of several lengths, else torch's kernel. None if both are missing.

    The kernel is called with these arguments: queries, keys and values [tokens, heads, channels]; the bounds of the
    rows in the queries and in the keys; the greatest length in both; the factor of the scores; and the number of tokens
    that a token sees (before, after).
    """
    try:
        from flash_attn import flash_attn_varlen_func

        def of_package(*arguments: Any) -> Tensor:
            *states, scaling, window = arguments
            output: Tensor = flash_attn_varlen_func(*states, softmax_scale=scaling, causal=True, window_size=window)
            return output

        return of_package
    except ImportError:
        pass
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    return kernel_of_torch(varlen_attn)


def kernel_of_torch(varlen_attn: Callable[..., Any]) -> Callable[..., Tensor] | None:
    """torch's attention kernel for rows of several lengths; None if this version lacks arguments. Version 2.10 has no
    factor and no window. Version 2.11 accepts fewer key heads than query heads without a flag."""
    parameters = signature(varlen_attn).parameters
    if not {"scale", "window_size"} <= parameters.keys():
        return None
    grouped = {"enable_gqa": True} if "enable_gqa" in parameters else {}

    def of_torch(*arguments: Any) -> Tensor:
        *states, scaling, window = arguments
        output = varlen_attn(*states, scale=scaling, window_size=window, **grouped)
        assert isinstance(output, Tensor)
        return output

    return of_torch


AttentionInterface.register(_NAME, torch.compiler.disable(_attention))  # type: ignore[no-untyped-call]
AttentionMaskInterface.register(_NAME, _mask)


@contextmanager
def attending_by_rows(model: Any) -> Iterator[None]:
    """While the context is open, the model can read packs, and the backward pass of packs may run."""
    configs = {id(module.config): module.config for module in model.modules() if hasattr(module, "config")}
    before = [(config, config._attn_implementation) for config in configs.values() if _is_sdpa(config)]
    for config, _ in before:
        config._attn_implementation = _NAME
    try:
        yield
    finally:
        for config, name in before:
            config._attn_implementation = name


def _is_sdpa(config: Any) -> bool:
    return getattr(config, "_attn_implementation", None) == "sdpa"


@contextmanager
def reading(pack: Pack, model: Any) -> Iterator[None]:
    """The context of a forward pass over a pack."""
    token = _running.set(pack)
    try:
        with attending_by_rows(model):
            yield
    finally:
        _running.reset(token)


_packings: WeakKeyDictionary[Any, Packing | None] = WeakKeyDictionary()


def packing_of(model: Any) -> Packing | None:
    """The packing of the model's rows, tried once on a few rows. None if packed rows do not give the logits of single
    rows.

    Packed rows differ for layers that carry a state from token to token (Mamba, linear attention, convolutions), and
    for a model without positions. A log line reports the result.
    """
    if model not in _packings:
        _packings[model] = next((how for how in _candidates(model) if computes_the_same(model, how)), None)
        name = type(without_adapter(model)).__name__
        if _packings[model] is None:
            log.warning("%s is trained on padded rows: it does not compute the same for packed ones", name)
        else:
            log.info("%s is trained on packed rows, attention: %s", name, _packings[model])
    return _packings[model]


def _candidates(model: Any) -> Iterator[Packing]:
    half = getattr(model, "dtype", None) in (torch.bfloat16, torch.float16)
    if half and model.device.type == "cuda" and varlen_kernel() is not None:
        yield "varlen"
    yield "rows"


@torch.no_grad()
def computes_the_same(model: Any, how: Packing) -> bool:
    if (size := vocabulary(model)) < 2:
        return False
    seeds = ((17, 31), (5, 12), (17, 27), (3, 9))
    rows = [tuple((seed + 29 * i * i) % size for i in range(n)) for seed, n in seeds]
    rows[2] = rows[2][:20] + rows[2][:19:-1]  # shares a beginning with the first
    pack, places = Pack.of(rows, model.device, how)
    try:
        with reading(pack, model):
            packed = model(**pack.inputs(), use_cache=False).logits[0].float()
        for row, place in zip(rows, places, strict=True):
            alone = model(input_ids=torch.tensor([row], device=model.device), use_cache=False).logits[0].float()
            if not alike(alone, packed[place.to(packed.device)], model.dtype):
                return False
    except Exception:  # the boundary of foreign models: those with other arguments or masks raise anything
        log.debug("%s cannot be packed", type(model).__name__, exc_info=True)
        return False
    return bool(packed.isfinite().all())
