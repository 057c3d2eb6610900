"""Metrics of a run's episodes, and checks of these metrics: canaries and numerics.

The package uses plain numbers and no torch. The embedded trainer, `agentrl eval` and the hooks under slime use the same
code.
"""

from __future__ import annotations

from agentrl.monitor.canaries import Canaries, CanaryConfig
from agentrl.monitor.metrics import EpisodeMetrics, RolloutMetrics
from agentrl.monitor.numerics import Numerics, NumericsConfig, NumericsWatch, compare

__all__ = [
    "Canaries",
    "CanaryConfig",
    "EpisodeMetrics",
    "Numerics",
    "NumericsConfig",
    "NumericsWatch",
    "RolloutMetrics",
    "compare",
]
