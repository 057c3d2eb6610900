"""No harm: a run whose held-out reward falls warns, or returns to its best weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from agentrl.monitor.run_figures import RunFigures, largest_fall
from agentrl.monitor.verdicts import advice_against_harm
from agentrl.train.config import TrainConfig
from agentrl.train.handover import HandOver
from agentrl.train.learner import Learner, random_states
from agentrl.train.order import StepOrder
from agentrl.train.progress import Position
from agentrl.train.run_folder import RunFolder
from agentrl.train.weights import load_weights

_EVERY = 10
"""The number of steps between two looks at the sampled reward, in a run without held-out tasks."""
_SLOWER = 0.5
"""The factor of the learning rate after a return to the best weights."""


class HarmWatch:
    """Compares each evaluation of a run with the evaluation before RL, and with the best so far. Without held-out
    tasks, compares the sampled reward of the last steps with that of the first."""

    def __init__(self, config: TrainConfig, folder: RunFolder, position: Position) -> None:
        self._config, self._folder, self._position = config, folder, position
        self._results = len(folder.results)
        self._warned = False

    async def after_step(
        self, learner: Learner, handover: HandOver, order: StepOrder, warn: Callable[[str], None]
    ) -> bool:
        """Warn of a fall of the reward, once. Returns True if the learner has returned to the run's best weights."""
        step = self._position.step
        fall = self._fall(step) if self._config.canaries is not None else None
        best = self._folder.best_result() if fall is not None and self._may_return else None
        if fall is None or (self._warned and best is None):
            return False
        self._warned = True
        if best is None or best.step >= step:
            warn(f"step {step}: {fall}")
            return False
        warn(f"step {step}: {fall}; the run returns to the weights of step {best.step}, with half the learning rate")
        checkpoint = self._folder.checkpoint(str(best.step))
        await order.aside(lambda: take_weights(learner, self._config, checkpoint))
        handover.changed(str(step))
        self._position.returned = True
        return True

    @property
    def _may_return(self) -> bool:
        canaries = self._config.canaries
        return canaries is not None and canaries.held_out_fall == "go_back" and not self._position.returned

    def _fall(self, step: int) -> str | None:
        """A fall that no earlier step could see, as text."""
        results = [result.line() for result in self._folder.results]
        if len(results) > self._results:
            fall, kind = largest_fall(results), "held out"
        elif results or step % _EVERY:
            return None
        else:
            fall, kind = RunFigures(self._folder.read_metrics()).fall, "the sampled reward"
        self._results = len(results)
        if fall is None:
            return None
        return f"{kind} fell {fall}. {advice_against_harm(self._config.learning_rate)}"


def take_weights(learner: Learner, config: TrainConfig, checkpoint: Path) -> None:
    """Give a learner the weights and the optimizer of a checkpoint of the same run, and halve the learning rate. The
    random states stay."""
    saved = dict(load_weights(config, str(checkpoint)).named_parameters())
    with torch.no_grad():
        for name, parameter in learner.model.named_parameters():
            if parameter.requires_grad:
                parameter.copy_(saved[name])
    state: dict[str, Any] = torch.load(checkpoint / "optimizer.pt", weights_only=True)
    learner.load_state_dict({**state, **random_states(learner.device)})
    learner.schedule = replace(learner.schedule, factor=learner.schedule.factor * _SLOWER)
