"""From trajectories to tensors: micro-batches under a token budget, with log-probs only where needed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from agentrl.train.images import RowImages
from agentrl.train.log_probs import PIECE_BYTES, take_apart, vocabulary
from agentrl.train.loss import token_log_probs
from agentrl.train.packing import Pack, Packing, reading
from agentrl.train.stems import Pass, packs
from agentrl.trajectory.segment import Segment
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import RenderedImage


@dataclass(frozen=True, slots=True)
class Row:
    """The tokens of a segment, with the positions and the weights of the trained tokens."""

    tokens: Sequence[int]
    positions: Sequence[int]
    """Indices into `tokens`, ascending, never empty. 0 does not occur, because the first token has no prediction."""
    weights: Sequence[float]
    """For each position, the advantage, or the weight in a supervised loss."""
    log_probs: Sequence[float] = ()
    """For each position, the log-prob under the policy that sampled the token; empty in a supervised batch."""
    share: float = 1.0
    """The weight of this row's tokens in the loss, relative to other rows."""
    media: Sequence[RenderedImage] = ()
    """The images among `tokens`. Images after the last position are not read."""

    @classmethod
    def of(cls, segment: Segment, advantages: Sequence[float], share: float = 1.0) -> Row | None:
        """The row of a segment's trained tokens. Each token gets the advantage of its turn. None without trained
        tokens."""
        trained = [(span.turn, i) for span in segment.spans if span.trained for i in range(span.start, span.stop)]
        if not trained:
            return None
        log_probs = segment.log_probs
        return cls(
            segment.ids,
            [segment.prompt_length + i for _, i in trained],
            [advantages[turn] for turn, _ in trained],
            [log_probs[i] for _, i in trained],
            share,
            segment.media,
        )

    @property
    def targets(self) -> list[int]:
        """The ids of the trained tokens."""
        return [self.tokens[position] for position in self.positions]

    @property
    def length(self) -> int:
        """The number of tokens that the model must read: all before the last trained token."""
        return self.positions[-1]

    @property
    def read(self) -> tuple[int, ...]:
        """The ids of the tokens that the model must read."""
        return tuple(self.tokens[: self.length])


def episode_rows(trajectory: Trajectory, advantages: Sequence[float], share: float = 1.0) -> list[Row]:
    """A row for each segment of an episode that has trained tokens. `advantages` has a value for each turn of the
    episode."""
    rows = [Row.of(segment, of_segment, share) for segment, of_segment in trajectory.by_segment(advantages)]
    return [row for row in rows if row is not None]


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Rows that the model reads in a single pass."""

    rows: tuple[Row, ...]
    """The rows. The tensors below list the trained tokens in the order of these rows."""
    inputs: Mapping[str, Tensor]
    """Arguments of the model. `input_ids` is [lines, length]: a line for each padded row, or a single line for a
    pack."""
    pack: Pack | None
    """The pack of the rows, or None for rows that are padded on the right. Padded rows need no mask: under causal
    attention no token sees the padding."""
    read: Pass | None
    """For a pack, the stem that the rows continue, and the stems that no later batch reads. A stem is a beginning of
    rows that is read in a separate pass; see `stems.py`."""
    predicting: Tensor
    """[k]: the indices in a line at which any line needs logits."""
    line: Tensor
    """[m]: the line of `input_ids` of each prediction."""
    column: Tensor
    """[m]: the index in `predicting` of each prediction's logits."""
    predicted: Tensor
    """[m]: the id of each predicted token. Rows with a shared beginning share the predictions of the beginning."""
    which: Tensor
    """[n]: for each trained token, the index of its prediction among the m."""
    row: Tensor
    """[n]: for each trained token, the index of its row."""
    weights: Tensor
    """[n]: for each trained token, the advantage, or the weight in a supervised loss."""
    shares: Tensor
    """[n]: for each trained token, the `share` of its row."""
    log_probs: Tensor
    """[n]: for each trained token, the log-prob under the policy that sampled the token; empty in a supervised
    batch."""
    forbidden: Tensor | None = None
    """The ids of tokens that no policy may sample. The softmax leaves these tokens out."""

    @classmethod
    def padded(cls, rows: Sequence[Row], device: torch.device, images: RowImages | None = None) -> MicroBatch:
        longest = max(row.length for row in rows)
        ids = [[*row.tokens[: row.length], *[0] * (longest - row.length)] for row in rows]
        predicting, column = torch.unique(_flat([row.positions for row in rows], device) - 1, return_inverse=True)
        inputs, targets = {"input_ids": torch.tensor(ids, device=device)}, _flat([row.targets for row in rows], device)
        every, more = torch.arange(len(targets), device=device), _of(rows, device)
        if images is not None:
            inputs |= images.inputs([(row.length, row.media) for row in rows])
            more["forbidden"] = images.forbidden
        return cls(tuple(rows), inputs, None, None, predicting, _numbers(rows, device), column, targets, every, **more)

    @classmethod
    def packed(
        cls, rows: Sequence[Row], device: torch.device, how: Packing = "rows", read: Pass | None = None
    ) -> MicroBatch:
        after = None if read is None else read.stem
        pack, places = Pack.of([row.read for row in rows], device, how, after=after)
        before = torch.cat([place[torch.tensor(row.positions) - 1] for row, place in zip(rows, places, strict=True)])
        targets = torch.tensor([token for row in rows for token in row.targets])
        several = int(targets.max()) + 1
        pairs, which = torch.unique(before * several + targets, return_inverse=True)
        predicting, predicted, every = pairs // several, pairs % several, torch.arange(len(pairs))
        predicting = predicting - (0 if after is None else len(after.row))
        columns = (column.to(device) for column in (predicting, torch.zeros_like(predicting), every, predicted, which))
        return cls(tuple(rows), pack.inputs(), pack, read, *columns, **_of(rows, device))

    @property
    def computed(self) -> int:
        """The number of computed tokens, padding included. A stem counts in the last batch that reads the stem."""
        stems = () if self.read is None else self.read.closes
        return self.inputs["input_ids"].numel() + sum(stem.own_length for stem in stems)

    def backward(self, loss: Tensor) -> None:
        """The backward pass of this batch, and of the stems that no later batch reads. Call it in the order of the
        batches, each time after `model_log_probs` of the same batch."""
        torch.autograd.backward(loss)
        self._close()

    def _close(self) -> None:
        for stem in () if self.read is None else self.read.closes:
            stem.close()

    def model_log_probs(self, model: Any, temperature: float = 1.0) -> Tensor:
        """Log-probs [n] of the trained tokens under a transformers causal language model.

        Logits of more than PIECE_BYTES are computed in pieces, and computed again in the backward pass. Without
        gradients, call this method in the order of the batches.
        """
        if self.read is not None and self.read.stem is not None:
            self.read.stem.compute(model)
        log_probs = self._log_probs(model, temperature)
        if not torch.is_grad_enabled():
            self._close()
        return log_probs

    def _log_probs(self, model: Any, temperature: float) -> Tensor:
        size, lines = vocabulary(model), len(self.inputs["input_ids"])
        halves = take_apart(model) if 4 * lines * len(self.predicting) * size > PIECE_BYTES else None
        with nullcontext() if self.pack is None else reading(self.pack, model):
            if halves is not None:
                hidden = halves.hidden_states(**self.inputs)[self.line, self.predicting[self.column]]
                return halves.log_probs(hidden, self.predicted, temperature, size, self.forbidden)[self.which]
            logits = model(**self.inputs, use_cache=False, logits_to_keep=self.predicting).logits
        of_each = logits[0] if self.pack else logits[self.line, self.column]
        return token_log_probs(of_each, self.predicted, temperature, self.forbidden)[self.which]


def _of(rows: Sequence[Row], device: torch.device) -> dict[str, Tensor]:
    """The tensors of a batch that have an element for each trained token, for any layout of the rows."""
    row = _numbers(rows, device)
    return {
        "row": row,
        "weights": _flat([row.weights for row in rows], device),
        "shares": torch.tensor([row.share for row in rows], device=device)[row],
        "log_probs": _flat([row.log_probs for row in rows], device),
    }


def _numbers(rows: Sequence[Row], device: torch.device) -> Tensor:
    return torch.tensor([i for i, row in enumerate(rows) for _ in row.positions], device=device)


def _flat(values: Sequence[Sequence[float]], device: torch.device) -> Tensor:
    return torch.tensor(list(chain.from_iterable(values)), device=device)


def micro_batches(
    rows: Sequence[Row],
    max_tokens: int,
    device: torch.device,
    *,
    packing: Packing | None = None,
    with_stems: bool = False,
    images: RowImages | None = None,
) -> Iterator[MicroBatch]:
    """Batches of at most `max_tokens` tokens each. Padding counts, and shared beginnings count once.

    A longer row is a batch of its own. `packing` is the model's packing (`packing_of`). If `packing` is None, rows are
    padded, as a model that reads `images` needs. `with_stems`: if more rows begin alike than a batch can hold, the
    beginning is still read only once (`reads_stems`). Then a batch may be as large as the longest row.
    """
    if packing:
        most = max([max_tokens, *(row.length for row in rows)]) if with_stems else max_tokens
        firsts = [row.positions[0] - 1 for row in rows]
        for part in packs([row.read for row in rows], most, packing, firsts=firsts, with_stems=with_stems):
            yield MicroBatch.packed([rows[number] for number in part.numbers], device, packing, part)
        return
    batch: list[Row] = []
    for row in sorted(rows, key=lambda row: row.length):
        if batch and (len(batch) + 1) * row.length > max_tokens:
            yield MicroBatch.padded(batch, device, images)
            batch = []
        batch.append(row)
    if batch:
        yield MicroBatch.padded(batch, device, images)
