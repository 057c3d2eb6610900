"""Serves miles/ray/train/actor_factory.py."""

from pathlib import Path

import torch_memory_saver


def get_binary_path_from_package(stem: str) -> Path:
    """The library that miles preloads into each Megatron actor."""
    return Path(str(torch_memory_saver.__file__)).parents[1] / f"{stem}.abi3.so"
