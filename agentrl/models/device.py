"""The device of a model by its name: cpu, cuda, mps or auto."""

from __future__ import annotations

import torch

from agentrl.errors import ConfigError


def device_of(name: str) -> str:
    """cpu, cuda or mps. `auto` is CUDA's GPU if there is a GPU, else cpu. Raises ConfigError for a missing GPU."""
    has_cuda = torch.cuda.is_available()
    if name == "auto":
        return "cuda" if has_cuda else "cpu"
    if name == "cuda" and not has_cuda:
        raise ConfigError("device: cuda was given, but torch sees no GPU; use cpu or auto")
    if name == "mps" and not torch.backends.mps.is_available():
        raise ConfigError("device: mps was given, but torch sees no GPU of a Mac; use cpu or auto")
    return name
