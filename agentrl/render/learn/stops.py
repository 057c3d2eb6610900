"""The stop tokens named in a model's folder."""

from __future__ import annotations

import json
from pathlib import Path

from agentrl.errors import ConfigError


def named_stops(folder: str) -> list[int]:
    """`eos_token_id` of the folder's generation_config.json, if there is one. Raises ConfigError if it is broken."""
    path = Path(folder or ".") / "generation_config.json"
    if not folder or not path.is_file():
        return []
    try:
        stops = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
    except (ValueError, AttributeError) as exc:
        raise ConfigError(f"{path}: not a generation config ({exc}); repair it or remove it") from exc
    return [stop for stop in (stops if isinstance(stops, list) else [stops]) if isinstance(stop, int)]
