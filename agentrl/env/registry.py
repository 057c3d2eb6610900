"""Environments by name: the entry points `agentrl.envs` of installed packages.

    [project.entry-points."agentrl.envs"]
    weather = "weather:Weather"

After that, `agentrl train weather` finds the class wherever the package is installed. `agentrl envs` lists all of them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from agentrl.errors import ConfigError, did_you_mean

GROUP = "agentrl.envs"


@dataclass(frozen=True, slots=True, order=True)
class OfferedEnv:
    """An environment of a package."""

    name: str
    path: str
    """`package.module:Class`."""
    package: str
    """The package and the package's version."""


def entries() -> Sequence[OfferedEnv]:
    """The environments of installed packages by name. The call imports no environment."""
    return _entries(tuple(sys.path))


@lru_cache(maxsize=2)
def _entries(search_path: tuple[str, ...]) -> Sequence[OfferedEnv]:
    """The environments on a search path. Cached: a host looks up its Env for every sample, and reading the metadata
    takes milliseconds."""
    from importlib.metadata import entry_points

    offered: dict[tuple[str, str], OfferedEnv] = {}
    for point in entry_points(group=GROUP):
        package = f"{point.dist.name} {point.dist.version}" if point.dist is not None else ""
        offered.setdefault((point.name, point.value), OfferedEnv(point.name, point.value, package))
    return sorted(offered.values())


def is_name(path: str) -> bool:
    """Whether the text is the name of an environment, and not the path of a class."""
    return not set(path) & set(".:/") and bool(path)


def path_of(name: str) -> str:
    """The path of the class with this name. Raises ConfigError if no package or several packages have the name; the
    message shows similar names."""
    offered = entries()
    paths = [entry.path for entry in offered if entry.name == name]
    if len(paths) == 1:
        return paths[0]
    if paths:
        raise ConfigError(f"{name} is the name of {' and of '.join(paths)}; name one of these instead")
    remedy = "; `agentrl envs` lists them, and a class of your own is my_env.py:NAME or package.module:NAME"
    meant = did_you_mean(name, (entry.name for entry in offered), remedy, most=3)
    raise ConfigError(f"no installed environment has the name {name!r}{meant}")
