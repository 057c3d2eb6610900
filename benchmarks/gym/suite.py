"""The ten tasks: an Env, a weak player for the demonstrations, and the limits of an episode."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GymTask:
    """A task of the gym. The best reward of each task is 1."""

    name: str
    env: str
    """The Env: `package.module:Class`."""
    weak: str
    """The player whose episodes are imitated: `package.module:function`."""
    gold: str
    """The player that earns the best reward."""
    turns: int
    tokens: int
    """The most tokens of a turn."""
    samples: int
    """The number of demonstrations of each task."""


def _task(name: str, module: str, env: str, *, turns: int, tokens: int, samples: int) -> GymTask:
    package = f"benchmarks.gym.{module}"
    weak, gold = f"{package}:{name}_weak", f"{package}:{name}_gold"
    return GymTask(name, f"{package}:{env}", weak, gold, turns, tokens, samples)


SUITE = (
    GymTask("weather", "my_env:MyEnv", "my_env:explorer", "my_env:gold", 4, 48, 6),
    _task("facts", "lookups", "Facts", turns=4, tokens=48, samples=16),
    _task("retail", "retail", "Retail", turns=10, tokens=64, samples=5),
    _task("calculator", "lookups", "Calculator", turns=8, tokens=64, samples=3),
    _task("guess", "games", "Guess", turns=6, tokens=8, samples=8),
    _task("nim", "games", "Nim", turns=8, tokens=8, samples=6),
    _task("form", "lookups", "Form", turns=8, tokens=64, samples=6),
    _task("repair", "lookups", "Repair", turns=5, tokens=24, samples=7),
    _task("corridor", "games", "Corridor", turns=22, tokens=12, samples=24),
    _task("harvest", "games", "Harvest", turns=10, tokens=12, samples=8),
)
