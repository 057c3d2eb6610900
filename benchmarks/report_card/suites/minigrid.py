"""minigrid and its BabyAI levels: a grid of numbers, a direction and a mission."""

from __future__ import annotations

import gymnasium
import minigrid

from benchmarks.report_card.environment import Environment, distinct
from benchmarks.report_card.suites.gymnasium import registered

PACKAGES = ["minigrid", "gymnasium"]


def environments() -> list[Environment]:
    """An environment for each class. Sizes of a class are variants."""
    minigrid.register_minigrid_envs()
    names = ("MiniGrid-", "BabyAI-")
    return distinct(registered(spec for name, spec in gymnasium.registry.items() if name.startswith(names)))
