"""From trajectories to padded tensors: micro-batches under a token budget, log-probs only where they are needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from agentrl.train.log_probs import PIECE_BYTES, take_apart, vocabulary
from agentrl.train.loss import token_log_probs
from agentrl.trajectory.segment import Segment
from agentrl.trajectory.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence, and its trained tokens."""

    tokens: Sequence[int]
    positions: Sequence[int]
    """Indices into `tokens`, ascending. There is at least one, and none is 0, because nothing predicts the first token.
    """
    weights: Sequence[float]
    """For each position, its advantage, or its weight in a supervised loss."""
    log_probs: Sequence[float] = ()
    """For each position, the log-prob under the policy it is compared with; empty in a supervised batch."""
    share: float = 1.0
    """The weight of this row's tokens in the loss, relative to those of other rows."""

    @classmethod
    def of(cls, segment: Segment, advantages: Sequence[float], share: float = 1.0) -> Row | None:
        """The trained tokens of one segment, each with the advantage of its turn; None if there is none."""
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
        )

    @property
    def targets(self) -> list[int]:
        """The trained tokens."""
        return [self.tokens[position] for position in self.positions]

    @property
    def length(self) -> int:
        """How many tokens the model must read: all before the last trained one."""
        return self.positions[-1]


def episode_rows(trajectory: Trajectory, advantages: Sequence[float], share: float = 1.0) -> list[Row]:
    """A row for each segment of an episode that has tokens to train; `advantages` are of the episode's turns."""
    rows = [Row.of(segment, own, share) for segment, own in trajectory.by_segment(advantages)]
    return [row for row in rows if row is not None]


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Rows padded on the right. They need no mask, because no token sees the padding under causal attention."""

    input_ids: Tensor
    """[rows, length]"""
    kept: Tensor
    """[k]: the positions at which any row needs logits."""
    row: Tensor
    """[n]: the row of each trained token."""
    column: Tensor
    """[n]: where in `kept` its logits are."""
    targets: Tensor
    """[n]: the token itself."""
    weights: Tensor
    shares: Tensor
    log_probs: Tensor
    """[n], or empty in a supervised batch."""

    @classmethod
    def of(cls, rows: Sequence[Row], device: torch.device) -> MicroBatch:
        longest = max(row.length for row in rows)
        padded = [[*row.tokens[: row.length], *[0] * (longest - row.length)] for row in rows]
        index = torch.tensor([i for i, row in enumerate(rows) for _ in row.positions], device=device)
        kept, column = torch.unique(_flat([row.positions for row in rows], device) - 1, return_inverse=True)
        return cls(
            torch.tensor(padded, device=device),
            kept,
            index,
            column,
            _flat([row.targets for row in rows], device),
            _flat([row.weights for row in rows], device),
            torch.tensor([row.share for row in rows], device=device)[index],
            _flat([row.log_probs for row in rows], device),
        )

    def model_log_probs(self, model: Any, temperature: float = 1.0) -> Tensor:
        """Log-probs [n] of the targets under a transformers causal language model.

        Logits of more than PIECE_BYTES are made in pieces, and made again in the backward pass.
        """
        size = vocabulary(model)
        if 4 * self.input_ids.shape[0] * len(self.kept) * size > PIECE_BYTES and (halves := take_apart(model)):
            hidden = halves.hidden_states(self.input_ids)[self.row, self.kept[self.column]]
            return halves.log_probs(hidden, self.targets, temperature, size)
        logits = model(input_ids=self.input_ids, use_cache=False, logits_to_keep=self.kept).logits
        return token_log_probs(logits[self.row, self.column], self.targets, temperature)


def _flat(values: Sequence[Sequence[float]], device: torch.device) -> Tensor:
    return torch.tensor(list(chain.from_iterable(values)), device=device)


def micro_batches(rows: Sequence[Row], max_tokens: int, device: torch.device) -> Iterator[MicroBatch]:
    """Batches of rows sorted by length, with at most `max_tokens` padded tokens. A longer row goes alone."""
    batch: list[Row] = []
    for row in sorted(rows, key=lambda row: row.length):
        if batch and (len(batch) + 1) * row.length > max_tokens:
            yield MicroBatch.of(batch, device)
            batch = []
        batch.append(row)
    if batch:
        yield MicroBatch.of(batch, device)
