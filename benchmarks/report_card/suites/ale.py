"""Atari's games, whose ROMs are in ale-py's wheel: an observation is the 128 bytes of the machine's memory."""

from __future__ import annotations

from dataclasses import replace

import ale_py
import gymnasium

from benchmarks.report_card.environment import Environment, distinct
from benchmarks.report_card.suites.gymnasium import registered

PACKAGES = ["ale-py", "gymnasium"]
OPTIONS = {"obs_type": "ram"}


def environments() -> list[Environment]:
    gymnasium.register_envs(ale_py)
    specs = [spec for spec in gymnasium.registry.values() if spec.namespace == "ALE"]
    games = distinct(registered(specs, OPTIONS, rules=lambda spec: str(spec.kwargs["game"])))
    return [replace(game, turns=12, seeds=2) for game in games]  # a machine takes long to start
