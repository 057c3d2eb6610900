"""Loads models: our own by name, a folder, or a name on the Hugging Face Hub, which is downloaded once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError
from agentrl.models.folder import load_folder, quiet_transformers, read_weights
from agentrl.models.hub import folder_of
from agentrl.models.tiny import tiny_model, tiny_tokenizer
from agentrl.models.tokenizer import load_tokenizer

__all__ = [
    "NAMES",
    "folder_of",
    "load_model",
    "load_tokenizer",
    "read_weights",
    "save_model",
    "tiny_model",
    "tiny_tokenizer",
]

NAMES = ("tiny", "smollm2-135m")


def load_model(model: str, *, device: str = "cpu", dtype: str = "float32", seed: int = 0) -> Any:
    """Load a causal LM in eval mode: `tiny`, or what `folder_of` finds. `seed` is for tiny's random weights.

    Raises ConfigError for an unknown name or dtype, for a folder without a model or without all of its weights, and for
    a name on the Hub that cannot be downloaded.
    """
    import torch

    torch_dtype = getattr(torch, dtype, None)
    if not isinstance(torch_dtype, torch.dtype):
        raise ConfigError(f"unknown dtype {dtype!r}: use float32, bfloat16 or float16")
    loaded = tiny_model(seed) if model == "tiny" else load_folder(_folder(model))
    return loaded.to(device=device, dtype=torch_dtype).eval()


def save_model(model: Any, tokenizer: Any, folder: str | Path) -> None:
    """Write a folder that `load_model`, SGLang and slime read: safetensors, config, tokenizer, chat template."""
    with quiet_transformers():
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _folder(model: str) -> Path:
    folder = folder_of(model, weights=True)
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{folder} has no config.json: it is not the folder of a Hugging Face model")
    return folder
