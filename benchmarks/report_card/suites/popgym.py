"""POPGym's environments of partial observation, each in its easy size."""

from __future__ import annotations

import re
from dataclasses import replace

import gymnasium
import popgym  # noqa: F401 - registers its environments

from benchmarks.report_card.environment import Environment
from benchmarks.report_card.suites.gymnasium import registered

PACKAGES = ["popgym", "gymnasium"]


def environments() -> list[Environment]:
    specs = [spec for name, spec in gymnasium.registry.items() if re.fullmatch("popgym-.*Easy-v0", name)]
    return [replace(each, least=-1.0, most=1.0) for each in registered(specs)]
