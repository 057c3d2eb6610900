"""Weights in memory that two processes share. A process writes the weights, and the other copies them into a model."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

_ALIGNMENT = 64
"""Bytes of which the offset of each tensor is a multiple."""


@dataclass(frozen=True, slots=True)
class Slot:
    """The place of a tensor in the shared memory."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    """The type of the tensor, by torch's name, such as bfloat16."""
    offset: int
    """The offset in bytes."""


class SharedWeights:
    """Tensors in a file without a name, which is in memory if the system has such files. The file is freed when the
    last process ends.

    `descriptor` is the open file, which a child process can inherit. Callers ensure that no process reads during a
    write.
    """

    def __init__(self, descriptor: int, slots: Sequence[Slot]) -> None:
        self.descriptor, self.slots = descriptor, tuple(slots)
        self._memory = mmap.mmap(descriptor, max(_end(self.slots), 1))
        self.tensors = {slot.name: self._view(slot) for slot in self.slots}

    @classmethod
    def like(cls, tensors: Mapping[str, torch.Tensor]) -> SharedWeights:
        """A file with room for tensors of these shapes and types. Empty tensors need no room."""
        slots, offset = list[Slot](), 0
        for name, tensor in tensors.items():
            if tensor.numel():
                slots.append(Slot(name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), offset))
                offset += -(-tensor.numel() * tensor.element_size() // _ALIGNMENT) * _ALIGNMENT
        descriptor = _unnamed_file()
        os.truncate(descriptor, max(_end(slots), 1))
        return cls(descriptor, slots)

    def write(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Copy the values of these tensors to their slots, from any device."""
        with torch.no_grad():
            for name, view in self.tensors.items():
                view.copy_(tensors[name])

    def close(self) -> None:
        """Close the file. The memory is freed with the last view of a tensor in this process."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
            self.tensors = {}

    def _view(self, slot: Slot) -> torch.Tensor:
        count = torch.Size(slot.shape).numel()
        flat = torch.frombuffer(self._memory, dtype=getattr(torch, slot.dtype), count=count, offset=slot.offset)
        return flat.view(slot.shape)


def _end(slots: Sequence[Slot]) -> int:
    """The size of the file in bytes."""
    if not slots:
        return 0
    last = slots[-1]
    dtype: torch.dtype = getattr(torch, last.dtype)
    return last.offset + torch.Size(last.shape).numel() * dtype.itemsize


def _unnamed_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("agentrl-weights")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
