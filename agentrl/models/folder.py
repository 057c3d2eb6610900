"""Loads a causal LM with all of its weights from a Hugging Face folder, or raises ConfigError."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError

_WITH_IMAGES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe")
"""The types of models that are loaded with their image side. transformers has no text-only class for these types."""
_OLD_BUFFERS = ("rotary_emb.inv_freq", "masked_bias", "attn.bias", "attention.bias")


def load_folder(folder: Path) -> Any:
    """Load the model that config.json describes, with the weights of the folder.

    Raises ConfigError for an unreadable folder, and for missing or unsuitable weights. For such weights transformers
    only warns, and uses random weights.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        auto = AutoModelForImageTextToText if config.model_type in _WITH_IMAGES else AutoModelForCausalLM
        with quiet_transformers():  # transformers reports missing weights in fifty lines, we in one
            model, loading = auto.from_pretrained(
                folder,
                local_files_only=True,
                trust_remote_code=False,  # None would prompt at the terminal
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # reported below, with their names
            )
    except Exception as exc:
        raise ConfigError(_unreadable(folder, exc)) from exc
    wrong = {
        "missing": loading["missing_keys"],
        "of another shape": {mismatch[0] for mismatch in loading["mismatched_keys"]},
        "unreadable": loading.get("error_msgs") or (),
    }
    problems = [f"{_some(names)} {problem}" for problem, names in wrong.items() if names]
    if unused := _unused(model, loading["unexpected_keys"]):
        problems.append(f"{_some(unused)} not of this model")
    if problems:
        raise ConfigError(
            f"{folder}: weights do not fit config.json: {'; '.join(problems)}; copy the whole folder again"
        )
    return model


def reads_images(model: Any) -> bool:
    """Whether a model has an image side."""
    return getattr(model.config, "model_type", None) in _WITH_IMAGES


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """While the context is open, transformers' warnings and progress bars are hidden. The progress bars would break
    those of agentrl."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def read_weights(folder: str | Path) -> dict[str, Any]:
    """The state dict of the model in a folder, on the CPU. Raises the ConfigErrors of `load_folder`."""
    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{folder} has no config.json: it is not the folder of a Hugging Face model")
    weights: dict[str, Any] = load_folder(folder).state_dict()
    return weights


def _unused(model: Any, names: Collection[str]) -> list[str]:
    """The names of weights in the files that belong to the model's own parts, and have no place in the model of
    config.json.

    Weights of other parts (a vision tower, a value head) are ignored, and so are buffers in old checkpoints.
    """
    parts = {_part(name) for name in model.state_dict()}
    return [name for name in names if _part(name) in parts and not name.endswith(_OLD_BUFFERS)]


def _part(name: str) -> str:
    """The large part of a model with the weight, such as `model.layers` or `lm_head`."""
    return ".".join(name.split(".")[:-1][:2])


def _some(names: Collection[str]) -> str:
    listed = sorted(map(str, names))
    more = f" and {len(listed) - 3} more" if len(listed) > 3 else ""
    return f"{', '.join(listed[:3])}{more}"


def _unreadable(folder: Path, exc: Exception) -> str:
    words = " ".join(str(exc).split())
    if "trust_remote_code" in words or "custom code" in words:
        return f"{folder}: the model needs its own code (auto_map in config.json), which agentrl does not run"
    return f"{folder} cannot be loaded as a causal LM: {type(exc).__name__}: {words:.300}"
