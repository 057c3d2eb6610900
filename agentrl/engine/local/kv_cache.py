"""Memory for keys and values, which any Hugging Face causal LM can write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from transformers import Cache

from agentrl.models.attention import without_cudnn

Remembered: TypeAlias = list[torch.Tensor]
"""The keys and values of a sequence: a tensor [heads, tokens, head size] for each layer. All keys come before all
values."""

SMALL_BYTES = 256 << 20
"""The most bytes of a small block. Small blocks have ample room and are reused later. Larger blocks have little more
than the needed size."""


class CacheBlock(Cache):  # type: ignore[misc]
    """Memory for sequences of similar length. Each sequence is a row, and the column of a token is its position.

    transformers' DynamicCache copies all keys and values at each step to append a column, and pads shorter rows on the
    left. In a CacheBlock, a step writes in place and needs no padding on the left. The keys and the values of each
    layer have the shape [rows, heads, columns, head size]. Unwritten memory is zero: a mask hides unwritten memory, but
    zero times NaN would still be NaN.
    """

    def __init__(self, token_bytes: int = 0) -> None:
        super().__init__(layers=[])
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []
        self._token_bytes = token_bytes
        self.rows = 0
        self.columns = 0

    def measure(self) -> int:
        """Bytes of a token in all layers. Known after a forward pass."""
        return sum(memory.shape[1] * memory.shape[3] * memory.element_size() for memory in self._all())

    @property
    def bytes(self) -> int:
        return sum(memory.nbytes for memory in self._all())

    def _all(self) -> tuple[torch.Tensor, ...]:
        return *self._keys, *self._values

    def fit(self, rows: int, columns: int, most_rows: int) -> None:
        """Make room for `rows` sequences of `columns` tokens. Frees memory if less than half is needed."""
        size = self._roomy(rows, columns, most_rows)
        if self.bytes > SMALL_BYTES and self.rows * self.columns > 2 * size[0] * size[1]:
            self._resize(*size)
        elif rows > self.rows or columns > self.columns:
            grown = max(size[0], self.rows), max(size[1], self.columns)
            # Many short sequences do not mean many long sequences.
            self._resize(*(grown if grown[0] * grown[1] * self._token_bytes <= SMALL_BYTES else size))

    def _roomy(self, rows: int, columns: int, most_rows: int) -> tuple[int, int]:
        """A size with room to grow: powers of two for a small block, else a quarter more."""
        roomy = min(_power_of_two(rows), most_rows), max(64, _power_of_two(columns))
        if roomy[0] * roomy[1] * self._token_bytes <= SMALL_BYTES:
            return roomy
        return min(rows + rows // 4, most_rows), -(-(columns + columns // 4) // 64) * 64

    def _resize(self, rows: int, columns: int) -> None:
        # Layer by layer, so at most one layer is held twice.
        for memories in (self._keys, self._values):
            for layer, old in enumerate(memories):
                new = old.new_zeros(rows, old.shape[1], columns, old.shape[3])
                part = old[:rows, :, :columns]
                new[: part.shape[0], :, : part.shape[2]] = part
                memories[layer] = new
        self.rows, self.columns = rows, columns

    def select(self, first: int, stop: int, columns: torch.Tensor, end: int) -> CacheBlock:
        """Set the place that the next forward pass reads and writes.

        The pass writes to `columns` [rows, tokens] of rows first..stop, and reads up to column `end`.
        """
        self._first, self._stop, self._end = first, stop, end
        self._rows, self._columns = torch.arange(first, stop, device=columns.device)[:, None], columns
        return self

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: object, **__: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store the new states [rows, heads, tokens, head size] of an attention layer, which calls this method. Returns
        all keys and values that the layer must read."""
        if layer_idx == len(self._keys):
            shape = (self.rows, key_states.shape[1], self.columns)
            self._keys.append(key_states.new_zeros(*shape, key_states.shape[3]))
            self._values.append(value_states.new_zeros(*shape, value_states.shape[3]))
        keys, values = self._keys[layer_idx], self._values[layer_idx]
        keys[self._rows, :, self._columns] = key_states.transpose(1, 2)
        values[self._rows, :, self._columns] = value_states.transpose(1, 2)
        return keys[self._first : self._stop, :, : self._end], values[self._first : self._stop, :, : self._end]

    def copy_out(self, row: int, tokens: int) -> Remembered:
        """Copy the keys and values of a row's first tokens. The copy has no spare room."""
        return [memory[row, :, :tokens].clone() for memory in self._all()]

    def copy_in(self, row: int, remembered: Remembered, tokens: int) -> None:
        """Copy the first tokens of a `copy_out` result into a row."""
        if not tokens:
            return
        half = len(remembered) // 2
        for memories, parts in ((self._keys, remembered[:half]), (self._values, remembered[half:])):
            for part in parts[len(memories) :]:  # made by an older block, before this block's first forward pass
                memories.append(part.new_zeros(self.rows, part.shape[0], self.columns, part.shape[2]))
        for memory, part in zip(self._all(), remembered, strict=True):
            memory[row, :, :tokens] = part[:, :tokens]

    def move(self, source: int, target: int, tokens: int) -> None:
        """Copy a row's first tokens to another row."""
        for memory in self._all():
            memory[target, :, :tokens] = memory[source, :, :tokens]

    def wipe(self, row: int) -> None:
        """Fill a row with zeros, because it may hold NaN."""
        for memory in self._all():
            memory[row] = 0

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Always 0: callers give positions explicitly."""
        return 0


def run(
    model: Any,
    block: CacheBlock,
    first: int,
    ids: list[list[int]],
    starts: list[int],
    end: int,
    context: int,
    images: Mapping[str, torch.Tensor],
) -> torch.Tensor:
    """A forward pass of rows `first`... over `ids`. Row r begins at position starts[r]. Returns each row's last logits.

    All rows of `ids` have the same width. Padding on the right writes after the row's last token, at most in column
    `end`. Later tokens overwrite the padding before any read. `images` are the arguments of `ImageInputs.of`.
    """
    device, dtype, width = model.device, model.dtype, len(ids[0])
    columns = (torch.tensor(starts, device=device)[:, None] + torch.arange(width, device=device)).clamp(max=end)
    hidden = torch.arange(end, device=device) > columns[:, :, None]
    mask = torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill_(hidden, torch.finfo(dtype).min)
    with without_cudnn():
        logits: torch.Tensor = model(
            input_ids=torch.tensor(ids, device=device),
            **{"position_ids": columns.clamp(max=context - 1), **images},
            attention_mask=mask[:, None],
            past_key_values=block.select(first, first + len(ids), columns, end),
            use_cache=True,
            logits_to_keep=1,
        ).logits
    return logits[:, -1]


def _power_of_two(number: int) -> int:
    return 1 << max(number - 1, 0).bit_length()
