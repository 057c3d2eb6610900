"""neurogym's tasks: trials of cognitive neuroscience, with discrete actions."""

from __future__ import annotations

import gymnasium
import neurogym

from benchmarks.report_card.environment import Environment, distinct
from benchmarks.report_card.suites.gymnasium import registered

PACKAGES = ["neurogym", "gymnasium"]


def environments() -> list[Environment]:
    specs = [spec for spec in gymnasium.registry.values() if str(spec.entry_point).startswith(neurogym.__name__)]
    return distinct(registered(specs))
