"""How many token ids a model has."""

from __future__ import annotations

import json
from pathlib import Path


def vocabulary_size(model: str) -> int | None:
    """What config.json in a model's folder says, padding of the embedding included. None where nothing says it.

    A tokenizer may know fewer ids: a model can sample those of the padding, too.
    """
    try:
        config = json.loads((Path(model) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    parts = [config, config.get("text_config")] if isinstance(config, dict) else []
    sizes = [part.get("vocab_size") for part in parts if isinstance(part, dict)]
    return next((size for size in sizes if type(size) is int and size > 0), None)
