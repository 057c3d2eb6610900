"""The types of single keys of the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

from pydantic import BeforeValidator, ConfigDict, Field


@dataclass(frozen=True)
class Keep:
    """The checkpoints and episodes that stay in a run folder: see `TrainConfig.keep`."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    last: Annotated[int, Field(ge=1)] = 2
    best: Annotated[int, Field(ge=0)] = 1
    groups: Annotated[int, Field(ge=0)] = 2


def _named(value: Any) -> Any:
    """Names with settings, from a name, from a list of names, or from names whose settings may be null."""
    names = [value] if isinstance(value, str) else value or ()
    return {name: (names[name] if isinstance(names, Mapping) else None) or {} for name in names}


TrackerSettings: TypeAlias = Annotated[dict[str, dict[str, Any]], BeforeValidator(_named)]
"""Name of a tracker -> the arguments of its constructor."""
