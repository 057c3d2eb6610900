"""Hooks for what a rehearsal judges: the sum of the weights, agentrl's warnings, and rewards with a spread."""

from __future__ import annotations

import functools
import logging
import os
import random
from typing import Any

from agentrl.rehearse.standins import events
from agentrl.rehearse.standins.imports import after
from agentrl.rehearse.standins.stages import modules, plain_class

RANDOM_VARIABLE = "AGENTRL_REHEARSAL_RANDOM"
"""The environment variable that is set if the model's weights are random."""


class _Warnings(logging.Handler):
    """Logs agentrl's warnings and errors as events."""

    def emit(self, record: logging.LogRecord) -> None:
        """Log the record's level and text under the stage `rollout`."""
        events.log("rollout", "data", level=record.levelname, message=record.getMessage())


def watch_warnings() -> None:
    """Log agentrl's warnings in this process."""
    logging.getLogger("agentrl").addHandler(_Warnings(logging.WARNING))


@after(*modules("backends.megatron_utils.actor"))
def sum_weights(module: Any) -> None:
    """`MegatronTrainRayActor.update_weights` of slime/backends/megatron_utils/actor.py: log the sum of the weights.

    The sums show whether training changed the weights, and whether a resumed run has the weights of its checkpoint.
    """
    actor = module.MegatronTrainRayActor
    update = actor.update_weights

    @functools.wraps(update)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        if models := getattr(self, "model", None):
            parameters = [parameter for model in models for parameter in model.parameters()]
            total = sum(parameter.detach().double().abs().sum().item() for parameter in parameters)
            events.log("weights", "data", rank=_rank(), sum=total)
        return update(self, *args, **kwargs)

    actor.update_weights = wrapped


def _rank() -> int:
    import torch.distributed as dist

    return int(dist.get_rank()) if dist.is_initialized() else 0


@after(*modules("ray.rollout"))
def spread_rewards(module: Any) -> None:
    """`RolloutManager._post_process_rewards` of slime/ray/rollout.py: equal rewards become random numbers.

    Episodes of a random model all earn the same, so that no update would change a weight. The raw rewards stay.
    """
    if not os.environ.get(RANDOM_VARIABLE):
        return
    manager = plain_class(module.RolloutManager)
    process = manager._post_process_rewards

    @functools.wraps(process)
    def wrapped(self: Any, samples: Any) -> Any:
        raw, rewards = process(self, samples)
        if rewards and all(isinstance(reward, (int, float)) and reward == 0 for reward in rewards):
            rewards = [random.Random(number).gauss(0.0, 1.0) for number in range(len(rewards))]
            events.log("conversion", "data", rollout=getattr(self, "rollout_id", None), random_rewards=len(rewards))
        return raw, rewards

    manager._post_process_rewards = wrapped
