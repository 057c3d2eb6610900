"""The number of token ids of a model."""

from __future__ import annotations

import json

from agentrl.errors import ConfigError
from agentrl.models.hub import cached_folder
from agentrl.models.tiny import tiny_tokenizer


def vocabulary_size(model: str) -> int | None:
    """The vocabulary size in config.json of a model, with the padding of the embedding. None if unknown.

    `model` is a folder, or a name on the Hub that is in the cache. A tokenizer may know fewer ids, but a model can also
    sample the ids of the padding.
    """
    if model == "tiny":
        return len(tiny_tokenizer())
    try:
        folder = cached_folder(model)
        config = json.loads((folder / "config.json").read_text(encoding="utf-8")) if folder else None
    except (OSError, ValueError, ConfigError):
        return None
    parts = [config, config.get("text_config")] if isinstance(config, dict) else []
    sizes = [part.get("vocab_size") for part in parts if isinstance(part, dict)]
    return next((size for size in sizes if type(size) is int and size > 0), None)
