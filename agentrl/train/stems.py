"""The rows of each pass; and stems, beginnings that are read once although the ends need several passes.

Rows are a tree: rows that begin alike share a path. A pack computes a path once, but the size of a pack is bounded, and
a long beginning with many ends does not fit. So the states of the beginning are computed first, as a stem, and stored.
Each later pack reads the stem's keys and values, and leaves gradients there. The last pack hands the sum to the stem's
backward pass. So each token of a tree is computed once, whatever the bound. (A prompt's last token is computed in each
pass, since it predicts.)

    stem  prompt of 3,000 tokens ──▶ keys and values of each layer
            ├─ pack  ends of 8 rows ──▶ loss, backward
            ├─ pack  ends of 8 rows ──▶ loss, backward
            └─ the stem's backward pass, with the sum of both gradients

Tree training as in AReaL (arXiv 2505.24298) and arXiv 2511.00413, without a mask over the tree.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from agentrl.models.adapter import without_adapter
from agentrl.train.log_probs import alike, vocabulary
from agentrl.train.packing import MOST_MASKED, MOST_READ, Pack, Packing, reading, shared_beginnings

log = logging.getLogger("agentrl")

LEAST_STEM = 64
"""The number of tokens from which a shared beginning is worth a separate pass."""


@dataclass(frozen=True, slots=True, eq=False)
class _States:
    """Keys and values of a stem's tokens in a layer, [1, heads, tokens, channels] each."""

    computed: tuple[Tensor, Tensor]
    """Keys and values in the graph of the stem's pass."""
    detached: tuple[Tensor, Tensor]
    """Keys and values that packs read: detached from the graph, so that the gradients of all packs add up here."""


@dataclass(slots=True, eq=False)
class Stem:
    """A beginning that several packs continue. The first of these packs computes the states."""

    row: tuple[int, ...]
    """The ids of all tokens of the beginning, including the tokens of `parent`."""
    parent: Stem | None
    how: Packing
    _states: dict[bool, dict[Any, _States]] = field(default_factory=dict)
    """(with gradients or not) -> layer -> states."""
    _filling: bool = False

    @property
    def own_length(self) -> int:
        """The number of tokens without the tokens of `parent`."""
        return len(self.row) - (0 if self.parent is None else len(self.parent.row))

    @property
    def chain(self) -> tuple[Stem, ...]:
        """The stem itself, its parent, the parent of the parent, and so on."""
        return (self, *(() if self.parent is None else self.parent.chain))

    def compute(self, model: Any) -> None:
        """Compute the keys and values if they are missing, with gradients if gradients are enabled."""
        if self.parent is not None:
            self.parent.compute(model)
        states = self._states.setdefault(torch.is_grad_enabled(), {})
        if states:
            return
        pack, _ = Pack.of([self.row], model.device, self.how, after=self.parent, keeps=self)
        self._filling = True
        try:
            with reading(pack, model):
                model(**pack.inputs(), use_cache=False, logits_to_keep=torch.tensor([0], device=model.device))
        finally:
            self._filling = False

    def keep(self, layer: Any, key: Tensor, value: Tensor) -> None:
        """Store the keys and values of a layer. When a backward pass computes the same states again, nothing is
        stored."""
        if self._filling:
            detached = (
                key.detach().requires_grad_(key.requires_grad),
                value.detach().requires_grad_(value.requires_grad),
            )
            self._states[torch.is_grad_enabled()][layer] = _States((key, value), detached)

    def before(self, layer: Any) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of all tokens of the chain, in order. Each pair has the tokens of a stem."""
        states = self._states[torch.is_grad_enabled()][layer].detached
        return [*(() if self.parent is None else self.parent.before(layer)), states]

    def close(self) -> None:
        """Run the backward pass of the stem, after the backward passes of all packs. The states are dropped, also
        without gradients."""
        states = self._states.pop(torch.is_grad_enabled(), {})
        pairs = [
            pair
            for layer_states in states.values()
            for pair in zip(layer_states.computed, layer_states.detached, strict=True)
        ]
        gradients = [(computed, detached.grad) for computed, detached in pairs if detached.grad is not None]
        if gradients:
            torch.autograd.backward([computed for computed, _ in gradients], [gradient for _, gradient in gradients])


@dataclass(frozen=True, slots=True)
class Pass:
    """The rows that a model reads in a single pass, by their numbers."""

    numbers: list[int]
    stem: Stem | None = None
    """The stem that the rows continue; None without a stem."""
    closes: tuple[Stem, ...] = ()
    """The stems that no later pass reads, the deepest first."""


_Part: TypeAlias = tuple[int, int, Stem | None]
"""(first, stop, stem): a range of the sorted rows, and the stem that these rows continue."""


@dataclass(frozen=True, slots=True)
class _Planner:
    rows: Sequence[tuple[int, ...]]
    """Rows in lexicographic order, so that neighbours share the longest beginnings."""
    shared: Sequence[int]
    """For each row, the number of tokens in common with the row before."""
    firsts: Sequence[int]
    """For each row, the index of the first trained prediction."""
    budget: int
    how: Packing
    with_stems: bool

    def passes(self) -> Iterator[tuple[range, Stem | None]]:
        waiting: list[_Part] = [(0, len(self.rows), None)] if self.rows else []
        while waiting:
            first, stop, stem = waiting.pop()
            if stop - first == 1 or self._fits(first, stop, stem):
                yield range(first, stop), stem
            elif (longer := self._stem(first, stop, stem)) is not None:
                waiting.append((first, stop, longer))
            else:
                waiting += reversed([*self._split(first, stop, stem)])

    def _fits(self, first: int, stop: int, stem: Stem | None) -> bool:
        past = 0 if stem is None else len(stem.row)
        lengths = [len(row) for row in self.rows[first:stop]]
        shared = [past, *(max(past, shared) for shared in self.shared[first + 1 : stop])]
        size = past + sum(length - shared for length, shared in zip(lengths, shared, strict=True))
        return size <= self.budget and sum(lengths) <= MOST_READ * self.budget

    def _stem(self, first: int, stop: int, stem: Stem | None) -> Stem | None:
        """A stem of the rows' common beginning; None if this beginning is not worth a pass."""
        past = 0 if stem is None else len(stem.row)
        common = min(*self.shared[first + 1 : stop], *self.firsts[first:stop])
        most = max((len(row) - common) * len(row) for row in self.rows[first:stop])
        if not self.with_stems or common - past < LEAST_STEM or (self.how == "rows" and most > MOST_MASKED):
            return None
        return Stem(self.rows[first][:common], stem, self.how)

    def _split(self, first: int, stop: int, stem: Stem | None) -> Iterator[_Part]:
        """Split the rows into as few parts as fit. Rows that begin alike stay together."""
        common = min(self.shared[first + 1 : stop])
        forks = [first, *(i for i in range(first + 1, stop) if self.shared[i] == common), stop]
        part_start = first
        for start, end in pairwise(forks[1:]):
            if not self._fits(part_start, end, stem):
                yield part_start, start, stem
                part_start = start
        yield part_start, stop, stem


def packs(
    rows: Sequence[tuple[int, ...]],
    budget: int,
    how: Packing = "rows",
    *,
    firsts: Sequence[int] = (),
    with_stems: bool = False,
) -> list[Pass]:
    """The passes over rows, each of at most `budget` tokens, stems included. A longer row is read alone.

    `firsts`: for each row, the most tokens at the beginning that a stem may hold; by default, all but the last token.
    """
    order = sorted(range(len(rows)), key=lambda number: rows[number])
    planner = _Planner(
        [rows[number] for number in order],
        shared_beginnings([rows[number] for number in order], how),
        [firsts[number] if firsts else len(rows[number]) - 1 for number in order],
        budget,
        how,
        with_stems,
    )
    passes = [*planner.passes()]
    last = {stem: index for index, (_, leaf) in enumerate(passes) for stem in ([] if leaf is None else leaf.chain)}
    return [
        Pass([order[i] for i in numbers], leaf, tuple(s for s in (leaf.chain if leaf else ()) if last[s] == index))
        for index, (numbers, leaf) in enumerate(passes)
    ]


def unique_tokens(rows: Sequence[tuple[int, ...]]) -> int:
    """The number of tokens of the rows if shared beginnings count once."""
    ordered = sorted(rows)
    shared = shared_beginnings(ordered, "varlen", least=1)
    return sum(map(len, ordered)) - sum(shared)


_stems: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()


def reads_stems(model: Any, how: Packing) -> bool:
    """Whether the model's logits after a stem are the same as those of whole rows, tried once. Models whose layers
    share keys and values may differ."""
    if model not in _stems:
        _stems[model] = computes_the_same(model, how)
        if not _stems[model]:
            name = type(without_adapter(model)).__name__
            log.warning("%s: a beginning that several packs share is read again in each", name)
    return _stems[model]


@torch.no_grad()
def computes_the_same(model: Any, how: Packing) -> bool:
    size = vocabulary(model)
    row, other = (tuple((17 + 29 * i * i + step * (i > 20)) % size for i in range(33)) for step in (0, 1))
    chain = Stem(row[:19], Stem(row[:7], None, how), how)
    pack, [place, _] = Pack.of([row, other], model.device, how, after=chain)
    try:
        chain.compute(model)
        with reading(pack, model):
            packed = model(**pack.inputs(), use_cache=False).logits[0].float()
        alone = model(input_ids=torch.tensor([row], device=model.device), use_cache=False).logits[0].float()
    except Exception:  # the boundary of foreign models, as in `packing_of`
        log.debug("%s cannot be read after a stem", type(model).__name__, exc_info=True)
        return False
    after_stem = packed[place[19:].to(packed.device) - 19]
    return bool(after_stem.isfinite().all()) and alike(alone[19:], after_stem, model.dtype)
