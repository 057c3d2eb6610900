"""neurogym's tasks: trials of cognitive neuroscience, with discrete actions."""

from __future__ import annotations

import gymnasium
import neurogym

from benchmarks.report_card.environment import Environment, distinct
from benchmarks.report_card.suites.gymnasium import registered

PACKAGES = ["neurogym", "gymnasium"]


def environments() -> list[Environment]:
    names = set(neurogym.all_envs())
    return distinct(registered(spec for name, spec in gymnasium.registry.items() if name in names))
