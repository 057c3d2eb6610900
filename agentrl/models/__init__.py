"""Loads models: agentrl's own models by name, the model of a folder, or a model of the Hugging Face Hub, downloaded
once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.errors import ConfigError
from agentrl.models.adapter import base_of, has_adapter, is_adapter, load_adapter, merge_adapter, save_adapter
from agentrl.models.folder import load_folder, quiet_transformers, read_weights
from agentrl.models.hub import NAMES, SEEDED, check_name, folder_of
from agentrl.models.portable import rewrite_config, save_tokenizer, set_ends
from agentrl.models.tiny import tiny_model, tiny_tokenizer
from agentrl.models.tiny_vl import tiny_vl_config, tiny_vl_model, tiny_vl_tokenizer
from agentrl.models.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from agentrl.models.vision import Vision

__all__ = [
    "NAMES",
    "SEEDED",
    "check_name",
    "folder_of",
    "is_adapter",
    "load_config",
    "load_model",
    "load_tokenizer",
    "merge_adapter",
    "read_weights",
    "save_adapter",
    "save_model",
    "set_ends",
    "tiny_model",
    "tiny_tokenizer",
    "tiny_vl_model",
    "tiny_vl_tokenizer",
]


def load_model(model: str, *, device: str = "cpu", dtype: str = "float32", seed: int = 0) -> Any:
    """Load a causal LM in eval mode: `tiny`, `tiny-vl`, or a model that `folder_of` finds. `seed` is for random
    weights. A model of Qwen-VL's family (2, 2.5, 3) is loaded with its image side.

    The folder of a LoRA adapter gives a peft model: the base model with the adapter on top, both in `dtype`. Raises
    ConfigError for an unknown name or dtype, for a folder without a model or with missing weights, and for a name on
    the Hub that cannot be downloaded.
    """
    import torch

    torch_dtype = getattr(torch, dtype, None)
    if not isinstance(torch_dtype, torch.dtype):
        raise ConfigError(f"unknown dtype {dtype!r}: use float32, bfloat16 or float16")
    folder = None if model in SEEDED else folder_of(model, weights=True)
    if folder is not None and is_adapter(folder):
        return _load_adapted(folder, device, dtype)
    if folder is None:
        loaded = tiny_model(seed) if model == "tiny" else tiny_vl_model(seed)
    else:
        loaded = load_folder(_whole(folder))
    return loaded.to(device=device, dtype=torch_dtype).eval()


def _load_adapted(folder: Path, device: str, dtype: str) -> Any:
    name = base_of(folder)
    try:
        base = load_model(name, device=device, dtype=dtype)
    except ConfigError as exc:
        raise ConfigError(f"{folder} is a LoRA adapter, and its base model is missing: {exc}") from exc
    return load_adapter(base, folder).eval()


def load_config(model: str) -> Any:
    """The transformers configuration of a model, or of the base model of an adapter. No weights are downloaded.

    Raises the ConfigErrors of `load_model`, and ConfigError for an unreadable configuration.
    """
    from transformers import AutoConfig

    if model in SEEDED:
        return tiny_model().config if model == "tiny" else tiny_vl_config()
    folder = folder_of(model, weights=False)
    if is_adapter(folder):
        return load_config(base_of(folder))
    try:
        return AutoConfig.from_pretrained(_whole(folder), local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as exc:
        raise ConfigError(f"{folder}: config.json cannot be read: {' '.join(str(exc).split()):.300}") from exc


def save_model(model: Any, tokenizer: Any, folder: str | Path, vision: Vision | None = None) -> None:
    """Write a folder that `load_model`, SGLang, vLLM, slime and transformers 4.57 can read: safetensors, config,
    tokenizer, chat template, and the configuration of the image processor if the model reads images.

    For a peft model, the adapter is written in peft's format, without the base model.
    """
    if has_adapter(model):
        save_adapter(model, folder)
    else:
        with quiet_transformers():
            model.save_pretrained(folder)
        rewrite_config(Path(folder), Path(model.config.name_or_path or ""))
    save_tokenizer(tokenizer, Path(folder))
    if vision is not None:
        vision.save(Path(folder))


def _whole(folder: Path) -> Path:
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{folder} has no config.json: it is not the folder of a Hugging Face model")
    return folder
