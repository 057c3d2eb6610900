"""The embedded trainer: RL on one machine, small enough to read in one sitting.

`config.py` says what a run is, `trainer.py` what happens in it, `credit.py`, `batch.py`, `loss.py` and `learner.py` how
rewards change weights, `warm_start.py` how imitation precedes RL, `run_folder.py` what is left behind.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from agentrl.train.config import TrainConfig, WarmStartConfig
from agentrl.train.run_folder import model_folder

if TYPE_CHECKING:
    from agentrl.train.learner import DivergedError
    from agentrl.train.report import Summary
    from agentrl.train.trainer import Trainer, train

__all__ = ["DivergedError", "Summary", "TrainConfig", "Trainer", "WarmStartConfig", "model_folder", "train"]

# torch takes more than a second to import: paid by those who train, not by those who read a configuration.
_LAZY = {
    "DivergedError": "agentrl.train.learner",
    "Summary": "agentrl.train.report",
    "Trainer": "agentrl.train.trainer",
    "train": "agentrl.train.trainer",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
