"""The embedded trainer: reinforcement learning on a single machine.

`config.py` holds the settings of a run, `trainer.py` the steps, `order.py` and `async_order.py` the order of rollouts
and updates, and `run_folder.py` the files. `credit.py`, `batch.py`, `loss.py` and `learner.py` turn rewards into new
weights. `warm_start.py` is the imitation before RL.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from agentrl._util.torch_threads import wait_passively
from agentrl.train.config import TrainConfig, WarmStartConfig
from agentrl.train.run_folder import model_folder

if TYPE_CHECKING:
    from agentrl.train.learner import DivergedError
    from agentrl.train.report import Summary
    from agentrl.train.trackers import TrackedRun, Tracker
    from agentrl.train.trainer import Trainer, train

__all__ = [
    "DivergedError",
    "Summary",
    "TrackedRun",
    "Tracker",
    "TrainConfig",
    "Trainer",
    "WarmStartConfig",
    "model_folder",
    "train",
]

wait_passively()

# torch takes more than a second to import. Reading a configuration does not need it.
_LAZY = {
    "DivergedError": "agentrl.train.learner",
    "Summary": "agentrl.train.report",
    "TrackedRun": "agentrl.train.trackers",
    "Tracker": "agentrl.train.trackers",
    "Trainer": "agentrl.train.trainer",
    "train": "agentrl.train.trainer",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
