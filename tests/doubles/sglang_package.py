"""The two classes of the package sglang by which trainers send tensors, for tests without that package."""

from __future__ import annotations

import base64
import io
import sys
from dataclasses import dataclass
from types import ModuleType

import torch


class MultiprocessingSerializer:
    @staticmethod
    def serialize(value, output_str=False):
        out = io.BytesIO()
        torch.save(value, out)
        return base64.b64encode(out.getvalue()).decode() if output_str else out.getvalue()

    @staticmethod
    def deserialize(text):
        return torch.load(io.BytesIO(base64.b64decode(text)), weights_only=False)


@dataclass
class Metadata:
    name: str
    shape: torch.Size
    dtype: torch.dtype
    start: int
    end: int


class FlattenedTensorBucket:
    supports_multi_dtypes = True

    def __init__(self, named_tensors=None, flattened_tensor=None, metadata=None):
        if named_tensors is not None:
            parts = [tensor.detach().contiguous().reshape(-1).view(torch.uint8) for _, tensor in named_tensors]
            ends = torch.tensor([0, *(part.numel() for part in parts)]).cumsum(0).tolist()
            metadata = [
                Metadata(name, tensor.shape, tensor.dtype, start, end)
                for (name, tensor), start, end in zip(named_tensors, ends, ends[1:], strict=False)
            ]
            flattened_tensor = torch.cat(parts)
        self.flattened_tensor, self.metadata = flattened_tensor, metadata

    def get_flattened_tensor(self):
        return self.flattened_tensor

    def get_metadata(self):
        return self.metadata

    def reconstruct_tensors(self):
        return [
            (part.name, self.flattened_tensor[part.start : part.end].clone().view(part.dtype).reshape(part.shape))
            for part in self.metadata
        ]


def install(monkeypatch):
    """Put the package on the path of this process."""
    modules = {
        name: ModuleType(name) for name in ("sglang", "sglang.srt", "sglang.srt.utils", "sglang.srt.weight_sync")
    }
    bucket = ModuleType("sglang.srt.weight_sync.tensor_bucket")
    modules["sglang.srt.utils"].MultiprocessingSerializer = MultiprocessingSerializer
    bucket.FlattenedTensorBucket = FlattenedTensorBucket
    for name, module in {**modules, bucket.__name__: bucket}.items():
        monkeypatch.setitem(sys.modules, name, module)
