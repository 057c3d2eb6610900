"""Settings of an episode by name, put where `run_episode` takes them."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from agentrl.episode.options import EpisodeHooks, EpisodeOptions


def arranged(**given: Any) -> dict[str, Any]:
    """`limits=..., aborted=...` as `options=EpisodeOptions(...), hooks=EpisodeHooks(...)`; the rest as it is."""
    found: dict[str, Any] = {}
    for name, cls in (("options", EpisodeOptions), ("hooks", EpisodeHooks)):
        own = {field.name: given.pop(field.name) for field in fields(cls) if field.name in given}
        found[name] = cls(**own)
    return {**found, **given}
