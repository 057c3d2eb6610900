"""The opponents of a training run and of its evaluations, in an Env with seats."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from agentrl.env.env import Env
from agentrl.errors import ConfigError
from agentrl.rollout.play.opponents import POLICY, Opponents, open_opponents
from agentrl.train.config import TrainConfig
from agentrl.train.engine_choice import device_of


def run_opponents(
    config: TrainConfig, env: type[Env], tokenizer: Any, stack: AsyncExitStack
) -> tuple[Opponents, Opponents]:
    """The opponents of training and of evaluations. `stack` closes the engines. Raises ConfigError."""
    fixed = [name for name in config.opponents if name != POLICY]
    evaluated = config.eval_opponents or fixed or [POLICY]
    if not env.seats:
        if fixed or config.eval_opponents:
            raise ConfigError(f"opponents: {env.__name__} has no seats; leave opponents and eval_opponents out")
        return Opponents(), Opponents()
    open_them = partial(
        open_opponents,
        stack=stack,
        vocabulary=tokenizer.get_vocab(),
        device=device_of(config.device),
        dtype=config.dtype,
    )
    return open_them(config.opponents), open_them(evaluated)
