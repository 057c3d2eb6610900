"""Which of torch's attention kernels are used on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def without_cudnn() -> Iterator[None]:
    """While the context is open, attention does not use cuDNN's kernels, in the whole process.

    cuDNN makes a plan for each length that is new to it. That took 70 ms on an H100 (torch 2.11): more than half of a
    decode step of SmolLM2's shape, and each decode step has a new length.
    """
    kernels = torch.backends.cuda
    before: bool = kernels.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
    kernels.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        kernels.enable_cudnn_sdp(before)
