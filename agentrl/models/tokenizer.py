"""Loads the tokenizers of named models, of folders, and of names on the Hugging Face Hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError
from agentrl.models.hub import folder_of
from agentrl.models.tiny import tiny_tokenizer
from agentrl.models.tiny_vl import tiny_vl_tokenizer

_SEEDED = {"tiny": tiny_tokenizer, "tiny-vl": tiny_vl_tokenizer}
_FILES = ("tokenizer_config.json", "tokenizer.json", "tokenizer.model", "vocab.json", "config.json")
"""The names of files by which a folder with a tokenizer is recognised: without all of them, there is no tokenizer."""


class RemoteCodeError(ConfigError):
    """The tokenizer needs Python code from its folder, which may not be run."""


def load_tokenizer(model: str, *, chat_template: str | None = None, trust_remote_code: bool = False) -> Any:
    """Load the tokenizer of a model, from the folder that `folder_of` returns. For a name on the Hub, no weights are
    downloaded. Does not import torch.

    `chat_template`, as Jinja text, replaces the model's own template. `trust_remote_code` runs Python files that come
    with the tokenizer, without a prompt. Raises ConfigError for an unknown name, for a failed download, for a folder
    without a tokenizer, and without a chat template.
    """
    folder = None if model in _SEEDED else _folder(model)
    tokenizer = _SEEDED[model]() if folder is None else read_tokenizer(folder, trust_remote_code)
    if chat_template is not None:
        tokenizer.chat_template = chat_template
    if tokenizer.chat_template is None:
        raise ConfigError(
            f"{folder} has no chat template: put the model's chat_template.jinja there "
            "(a base model's folder has none: take the instruct model's)"
        )
    return tokenizer


def read_tokenizer(folder: Path, trust_remote_code: bool) -> Any:
    """Read the tokenizer of a folder. Raises ConfigError."""
    kind = _tokenizer_class(folder)
    try:
        return kind.from_pretrained(folder, local_files_only=True, trust_remote_code=trust_remote_code)
    except Exception as exc:  # the tokenizer boundary: damaged files raise anything
        problem = " ".join(str(exc).split())
        if "trust_remote_code" in problem:
            raise RemoteCodeError(
                f"{folder}: this tokenizer has its own Python code, which agentrl runs only if slime has already run "
                "it, for --hf-checkpoint; convert it to a tokenizer.json"
            ) from exc
        raise ConfigError(
            f"{folder}: its tokenizer cannot be read: {type(exc).__name__}: {problem:.300}; copy its files anew"
        ) from exc


def _tokenizer_class(folder: Path) -> Any:
    """The class for the tokenizer in a folder: AutoTokenizer, or a class that only reads tokenizer.json, if the folder
    names this class or has no other files.

    In a qwen2 folder, transformers 5 ignores the class that the folder names, and reads the file with Qwen's own
    regular expression, normaliser and merges. The same text then gives other tokens.
    """
    from transformers import PreTrainedTokenizerFast

    config = folder / "tokenizer_config.json"
    try:
        settings = json.loads(config.read_text(encoding="utf-8")) if config.is_file() else {}
    except (OSError, ValueError) as exc:
        raise ConfigError(f"{config}: not readable as JSON: {exc}") from exc
    declared = settings.get("tokenizer_class")
    nothing_else = not declared and "auto_map" not in settings and not (folder / "config.json").is_file()
    if declared in ("PreTrainedTokenizerFast", "TokenizersBackend") or nothing_else:
        return PreTrainedTokenizerFast
    from transformers import AutoTokenizer  # imports torch, if torch is installed

    return AutoTokenizer


def _folder(model: str) -> Path:
    folder = folder_of(model, weights=False)
    if not any((folder / name).is_file() for name in _FILES):
        raise ConfigError(f"{folder} holds no tokenizer: it has none of {', '.join(_FILES)}; name another folder")
    return folder
