"""Key and value memory in slots, one a sequence, that any Hugging Face causal LM writes to."""

from __future__ import annotations

import torch
from transformers import Cache


class SlotCache(Cache):  # type: ignore[misc]
    """Sequence s occupies slot s from column 0; a token's column is its position.

    transformers' DynamicCache copies all keys and values at each step to append one column, and pads rows of unequal
    age on the left. Here a step writes in place, rows need no padding, and a slot that is left alone remembers its
    sequence, for the next turn of its session. Memory is [slots, heads, columns, head size] for keys and for values of
    each layer, grown by doubling.
    """

    def __init__(self) -> None:
        super().__init__(layers=[])
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []
        self._slots = 1
        self._columns = 64

    def reserve(self, slots: int, columns: int) -> None:
        """Make room for so many sequences of so many tokens; what is stored stays."""
        if slots <= self._slots and columns <= self._columns:
            return
        while self._slots < slots:
            self._slots *= 2
        while self._columns < columns:
            self._columns *= 2
        self._keys = [self._grown(old) for old in self._keys]
        self._values = [self._grown(old) for old in self._values]

    def _grown(self, old: torch.Tensor) -> torch.Tensor:
        new = old.new_zeros(self._slots, old.shape[1], self._columns, old.shape[3])
        new[: old.shape[0], :, : old.shape[2]] = old
        return new

    def select(self, first: int, stop: int, columns: torch.Tensor, end: int) -> SlotCache:
        """Direct the next forward pass: it writes to `columns` [rows, tokens] of slots first..stop, and reads up to
        column `end`.
        """
        self._first, self._stop, self._end = first, stop, end
        self._rows, self._at = torch.arange(first, stop, device=columns.device)[:, None], columns
        return self

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: object, **__: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Called by each attention layer with [rows, heads, tokens, head size]; answers all that it may attend to."""
        if layer_idx == len(self._keys):
            shape = (self._slots, key_states.shape[1], self._columns)
            self._keys.append(key_states.new_zeros(*shape, key_states.shape[3]))
            self._values.append(value_states.new_zeros(*shape, value_states.shape[3]))
        keys, values = self._keys[layer_idx], self._values[layer_idx]
        keys[self._rows, :, self._at] = key_states.transpose(1, 2)
        values[self._rows, :, self._at] = value_states.transpose(1, 2)
        return keys[self._first : self._stop, :, : self._end], values[self._first : self._stop, :, : self._end]

    def exchange(self, a: int, b: int, columns: int) -> None:
        """Swap the first `columns` of two slots."""
        for memory in (*self._keys, *self._values):
            kept = memory[a, :, :columns].clone()
            memory[a, :, :columns] = memory[b, :, :columns]
            memory[b, :, :columns] = kept

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """0: positions are always given, never counted from here."""
        return 0
