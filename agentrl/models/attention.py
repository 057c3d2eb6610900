"""The choice of torch's attention kernels on a GPU."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_lock = threading.Lock()
_open = 0
"""The number of open contexts of `without_cudnn`, in all threads."""
_before = True
"""torch's setting for cuDNN before the first open context."""


@contextmanager
def without_cudnn() -> Iterator[None]:
    """While the context is open, attention does not use cuDNN's kernels, in the whole process.

    cuDNN makes a plan for each new length, and each decode step has a new length. A plan took 70 ms on an H100 (torch
    2.11): more than half of a decode step of SmolLM2's shape.
    """
    global _open, _before
    kernels = torch.backends.cuda
    with _lock:
        if not _open:
            _before = kernels.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
            kernels.enable_cudnn_sdp(False)
        _open += 1
    try:
        yield
    finally:
        with _lock:
            _open -= 1
            if not _open:
                kernels.enable_cudnn_sdp(_before)
