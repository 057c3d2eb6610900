"""Checks whether a running server suits a training run. The check happens once, before the first episode."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentrl.engine.sglang.training.control import ServerControl
from agentrl.engine.sglang.training.flags import IMAGE_CACHE
from agentrl.engine.sglang.training.weights import Adapter
from agentrl.engine.table import TrainingParts
from agentrl.errors import ConfigError, EngineError

_log = logging.getLogger("agentrl")

_SIZES = ("vocab_size", "hidden_size", "num_hidden_layers")
"""The keys of the configuration that server and trainer must agree about. For a model that reads images, the
configuration of its language side counts."""


async def check_suitable(
    control: ServerControl, model: Any, adapter: Adapter | None, training: TrainingParts, *, sleeps: bool, images: bool
) -> None:
    """Raises ConfigError if the server at a URL does not respond, serves a different kind of model, or lacks a flag.

    `images`: the model in training reads images.
    """
    try:
        info, about = await control.server_info(), await control.model_info()
    except EngineError as exc:
        raise ConfigError(
            f"engine_config.url {control.url}: no SGLang server answers ({exc}); start one, or leave url out"
        ) from exc
    _check_model(control.url, about, model)
    _check_adapter(control.url, info, adapter)
    if images:
        _check_images(control.url, about, adapter)
    if sleeps and not info.get("enable_memory_saver") and training.device != "cpu":
        raise ConfigError(f"engine_config.sleep: start {control.url} with --enable-memory-saver, or leave sleep out")
    if (dtype := info.get("dtype")) not in (None, "auto", training.dtype):
        _log.warning("%s samples in %s, and this run trains in %s: set dtype", control.url, dtype, training.dtype)


def _check_model(url: str, about: Mapping[str, Any], model: Any) -> None:
    served = {
        **_config_of(about.get("model_path")),
        **({"model_type": kind} if (kind := about.get("model_type")) else {}),
    }
    text = model.config.get_text_config()
    ours = {"model_type": model.config.model_type} | {key: getattr(text, key, None) for key in _SIZES}
    wrong = [key for key in ours if key in served and served[key] != ours[key]]
    if wrong:
        key = wrong[0]
        raise ConfigError(
            f"engine_config.url {url} serves another model, {about.get('model_path')}: "
            f"its {key} is {served[key]}, and that of the model in training {ours[key]}"
        )


def _config_of(folder: object) -> Mapping[str, Any]:
    """The content of config.json in the server's model folder. Empty if this machine has no such folder."""
    try:
        config = json.loads((Path(str(folder)) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(config, dict):
        return {}
    text = config.get("text_config")
    return config | {key: text[key] for key in _SIZES if key in text} if isinstance(text, dict) else config


def _check_adapter(url: str, info: Mapping[str, Any], adapter: Adapter | None) -> None:
    if adapter is None:
        return
    rank, flags = info.get("max_lora_rank"), f"--enable-lora --max-lora-rank {adapter.rank}"
    flags += f" --lora-target-modules {' '.join(adapter.modules)}"
    if "enable_lora" in info and not info["enable_lora"]:
        raise ConfigError(f"engine_config.url {url} takes no adapters; start it with {flags}")
    if isinstance(rank, int) and rank < adapter.rank:
        raise ConfigError(f"engine_config.url {url} takes adapters of rank {rank} at most; start it with {flags}")


def _check_images(url: str, about: Mapping[str, Any], adapter: Adapter | None) -> None:
    if about.get("has_image_understanding") is False:
        raise ConfigError(
            f"engine_config.url {url} reads text only: start it with --enable-multimodal, from a folder with "
            "preprocessor_config.json"
        )
    if adapter is None:
        _log.warning(
            "%s must have been started with %s=0 in its environment: else it reads an image that it knows with old "
            "weights, and logprob_diff_max grows from step 2 on",
            url,
            IMAGE_CACHE,
        )
