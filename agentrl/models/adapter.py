"""LoRA adapters in peft's format: adapter_model.safetensors and adapter_config.json, without the base model."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError

_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
ACTIVE = "default"
"""peft's name for the adapter that is trained and sampled from."""


def import_peft() -> Any:
    """The module peft. Raises ConfigError if peft is not installed."""
    try:
        import peft
    except ModuleNotFoundError as exc:
        if exc.name != "peft":
            raise
        raise ConfigError("a LoRA adapter needs peft: pip install 'agentrl-sdk[lora]'") from exc
    return peft


@contextmanager
def quiet_peft() -> Iterator[None]:
    """While the context is open, peft's warnings about transformers and names are hidden. The important cases are
    checked here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def is_adapter(folder: Path) -> bool:
    """Whether a folder contains an adapter instead of a whole model."""
    return (folder / _CONFIG).is_file()


def has_adapter(model: Any) -> bool:
    """Whether a model is a peft model."""
    return hasattr(model, "peft_config")


def without_adapter(model: Any) -> Any:
    """The model inside a peft model. Any other model is returned unchanged."""
    return model.get_base_model() if has_adapter(model) else model


def base_of(folder: Path) -> str:
    """The name or folder of the model on which an adapter was trained. Raises ConfigError."""
    try:
        config = json.loads((folder / _CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise ConfigError(f"{folder / _CONFIG}: not readable as JSON: {exc}") from exc
    base = config.get("base_model_name_or_path") if isinstance(config, dict) else None
    if not isinstance(base, str) or not base:
        raise ConfigError(
            f"{folder / _CONFIG} names no base_model_name_or_path: write the model's name or folder there"
        )
    return base


def load_adapter(model: Any, folder: Path, name: str = ACTIVE) -> Any:
    """A peft model of `model` and the adapter of a folder. The adapter's weights get the type of the model, and are
    trainable.

    If `model` is a peft model already, the adapter is added, frozen and not active. Raises ConfigError for an adapter
    that does not fit, instead of inventing missing weights.
    """
    peft = import_peft()
    where = {"adapter_name": name, "local_files_only": True, "autocast_adapter_dtype": False}
    try:
        with quiet_peft():
            if has_adapter(model):
                model.load_adapter(str(folder), is_trainable=False, **where)
                loaded = model
            else:
                loaded = peft.PeftModel.from_pretrained(model, str(folder), is_trainable=True, **where)
        _check(peft, loaded, folder, name)
    except ConfigError:
        raise
    except Exception as exc:  # the boundary of peft and safetensors: damaged files raise anything
        words = " ".join(f"{type(exc).__name__}: {exc}".split())
        raise ConfigError(f"{folder}: its adapter cannot be loaded: {words:.300}") from exc
    return loaded


def _check(peft: Any, model: Any, folder: Path, name: str) -> None:
    """Raises ConfigError unless the folder has all weights of the adapter, and no further weights. peft itself only
    warns."""
    from safetensors import safe_open

    with safe_open(folder / _WEIGHTS, framework="pt") as file:
        stored = set(file.keys())
    expected = set(peft.get_peft_model_state_dict(model, adapter_name=name, save_embedding_layers=False))
    if wrong := sorted(stored ^ expected):
        raise ConfigError(f"{folder}: its adapter does not fit the base model at {wrong[0]} and {len(wrong) - 1} more")


def save_adapter(model: Any, folder: str | Path, name: str = ACTIVE) -> None:
    """Write an adapter of a peft model, without the base model."""
    peft = import_peft()
    from safetensors.torch import save_file

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    weights = peft.get_peft_model_state_dict(model, adapter_name=name, save_embedding_layers=False)
    tensors = {key: tensor.detach().cpu().contiguous() for key, tensor in weights.items()}
    save_file(tensors, folder / _WEIGHTS, metadata={"format": "pt"})
    config = model.peft_config[name]
    mode, config.inference_mode = config.inference_mode, True  # as peft does: an adapter is rarely trained again
    try:
        config.save_pretrained(str(folder))
    finally:
        config.inference_mode = mode


def merge_adapter(model: Any) -> Any:
    """The base model of a peft model with the adapter added to the weights, in the type of the weights.

    Merge in float32: in bfloat16, rounding loses most of the training. Raises ConfigError if the sum is not finite.
    """
    try:
        with quiet_peft():
            return model.merge_and_unload(safe_merge=True)
    except ValueError as exc:
        raise ConfigError(f"the adapter cannot be merged: {' '.join(str(exc).split())}") from exc
