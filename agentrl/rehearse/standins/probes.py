"""Hooks for the verdict: the sum of the weights, agentrl's warnings, and rewards with a spread."""

from __future__ import annotations

import functools
import inspect
import logging
import os
import random
from collections.abc import Callable
from typing import Any

from agentrl.rehearse.standins import events
from agentrl.rehearse.standins.imports import after
from agentrl.rehearse.standins.stages import plain_class

RANDOM_VARIABLE = "AGENTRL_REHEARSAL_RANDOM"
"""The environment variable that is set if the model's weights are random."""


class _Warnings(logging.Handler):
    """Logs agentrl's warnings and errors as events."""

    def emit(self, record: logging.LogRecord) -> None:
        """Log the record's level and text under the stage `rollout`."""
        events.log("rollout", "data", level=record.levelname, message=record.getMessage())


def watch_warnings() -> None:
    """Log agentrl's warnings in this process. A second call has no effect."""
    log = logging.getLogger("agentrl")
    if not any(isinstance(handler, _Warnings) for handler in log.handlers):
        log.addHandler(_Warnings(logging.WARNING))


@after("slime.backends.megatron_utils.actor", "miles.backends.megatron_utils.actor")
def sum_weights(module: Any) -> None:
    """Log the sum of the weights in `MegatronTrainRayActor.update_weights`.

    The sums show whether training changed the weights, and whether a resumed run has the weights of its checkpoint.
    """
    actor = module.MegatronTrainRayActor
    update = actor.update_weights

    @functools.wraps(update)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        _log_sum(self)
        return update(self, *args, **kwargs)

    @functools.wraps(update)
    async def awaited(self: Any, *args: Any, **kwargs: Any) -> Any:
        _log_sum(self)
        return await update(self, *args, **kwargs)

    actor.update_weights = awaited if inspect.iscoroutinefunction(update) else wrapped


def _log_sum(actor: Any) -> None:
    if models := getattr(actor, "model", None):
        parameters = [parameter for model in models for parameter in model.parameters()]
        total = sum(parameter.detach().double().abs().sum().item() for parameter in parameters)
        events.log("weights", "data", rank=_rank(), sum=total)


def _rank() -> int:
    import torch.distributed as dist

    return int(dist.get_rank()) if dist.is_initialized() else 0


@after("slime.ray.rollout")
def spread_rewards(module: Any) -> None:
    """Give rewards a spread in `RolloutManager._post_process_rewards` of slime/ray/rollout.py."""
    manager = plain_class(module.RolloutManager)
    if hasattr(manager, "_post_process_rewards"):
        manager._post_process_rewards = with_spread(manager._post_process_rewards)


@after("miles.ray.rollout.train_data_conversion")
def spread_rewards_of_miles(module: Any) -> None:
    """Give rewards a spread in `_post_process_rewards` of miles/ray/rollout/train_data_conversion.py."""
    module._post_process_rewards = with_spread(module._post_process_rewards)


def with_spread(process: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that replaces rewards by random numbers if all are zero and the model is random.

    Episodes of a random model all earn the same, so that no update would change a weight. The raw rewards stay.
    """

    @functools.wraps(process)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        raw, rewards = process(*args, **kwargs)
        if os.environ.get(RANDOM_VARIABLE) and rewards and all(_is_zero(reward) for reward in rewards):
            rewards = [random.Random(number).gauss(0.0, 1.0) for number in range(len(rewards))]
            events.log("conversion", "data", random_rewards=len(rewards))
        return raw, rewards

    return wrapped


def _is_zero(reward: Any) -> bool:
    return isinstance(reward, (int, float)) and reward == 0
