"""Tensors on their way from slime's trainer to an engine, by value. SGLang passes handles of GPU memory.

Serves update_weights_from_tensor: slime/backends/megatron_utils/update_weight/update_weight_from_tensor.py packs the
tensors, and an engine's server unpacks them. The bytes are torch's format, which is read without running code.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass
class FlattenedTensorMetadata:
    """The place of a tensor in a bucket: the bytes from `start_idx` to `end_idx`."""

    name: str
    shape: torch.Size
    dtype: torch.dtype
    start_idx: int
    end_idx: int
    numel: int


class FlattenedTensorBucket:
    """Several tensors of any types as one flat tensor of bytes. The interface is SGLang's."""

    supports_multi_dtypes = True

    def __init__(
        self,
        named_tensors: Sequence[tuple[str, torch.Tensor]] | None = None,
        flattened_tensor: torch.Tensor | None = None,
        metadata: list[FlattenedTensorMetadata] | None = None,
    ) -> None:
        """Pack `named_tensors`, or take a flat tensor and its metadata. Raises ValueError without any of them."""
        if named_tensors is None:
            if flattened_tensor is None or metadata is None:
                raise ValueError("a bucket needs named_tensors, or flattened_tensor and metadata")
            self.flattened_tensor, self.metadata = flattened_tensor, metadata
            return
        if not named_tensors:
            raise ValueError("a bucket needs at least one tensor")
        self.metadata, parts, start = [], [], 0
        for name, tensor in named_tensors:
            part = tensor.detach().contiguous().flatten().view(torch.uint8)
            end = start + part.numel()
            self.metadata.append(FlattenedTensorMetadata(name, tensor.shape, tensor.dtype, start, end, part.numel()))
            parts.append(part)
            start = end
        self.flattened_tensor = torch.cat(parts)

    def get_flattened_tensor(self) -> torch.Tensor:
        return self.flattened_tensor

    def get_metadata(self) -> list[FlattenedTensorMetadata]:
        return self.metadata

    def reconstruct_tensors(self) -> list[tuple[str, torch.Tensor]]:
        """The tensors with their names, as copies: a tensor's bytes may start anywhere in the bucket."""
        return [
            (entry.name, self._bytes(entry).clone().view(entry.dtype).reshape(entry.shape)) for entry in self.metadata
        ]

    def _bytes(self, entry: FlattenedTensorMetadata) -> torch.Tensor:
        return self.flattened_tensor[entry.start_idx : entry.end_idx]


class MultiprocessingSerializer:
    """Tensors, and lists and dicts of tensors, as bytes or as base64. The interface is SGLang's."""

    @staticmethod
    def serialize(obj: Any, output_str: bool = False) -> str | bytes:
        buffer = io.BytesIO()
        torch.save(obj, buffer)
        return base64.b64encode(buffer.getvalue()).decode("ascii") if output_str else buffer.getvalue()

    @staticmethod
    def deserialize(data: str | bytes) -> Any:
        """Raises pickle.UnpicklingError for data that names other classes than those of tensors and metadata."""
        raw = base64.b64decode(data) if isinstance(data, str) else data
        with torch.serialization.safe_globals([FlattenedTensorMetadata]):
            return torch.load(io.BytesIO(raw), weights_only=True)
