"""The number of token ids of a model."""

from __future__ import annotations

import json
from pathlib import Path


def vocabulary_size(model: str) -> int | None:
    """The vocabulary size in config.json of a model's folder, with the padding of the embedding. None if unknown.

    A tokenizer may know fewer ids, but a model can also sample the ids of the padding.
    """
    try:
        config = json.loads((Path(model) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    parts = [config, config.get("text_config")] if isinstance(config, dict) else []
    sizes = [part.get("vocab_size") for part in parts if isinstance(part, dict)]
    return next((size for size in sizes if type(size) is int and size > 0), None)
