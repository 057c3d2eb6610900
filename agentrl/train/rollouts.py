"""The objects that a configuration needs for its rollouts: engine, opponents, and the order of rollouts and updates."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from agentrl.engine.base import TrainedEngine
from agentrl.engine.pausable import PausableEngine
from agentrl.engine.table import EngineParts, TrainingParts, open_engine
from agentrl.env.env import Env
from agentrl.episode.phases import PhaseSlots
from agentrl.errors import ConfigError
from agentrl.models.device import device_of
from agentrl.models.vision import Vision
from agentrl.render.base import Renderer
from agentrl.rollout.loop.buffer import GroupBuffer
from agentrl.rollout.loop.drawing import GroupDrawer
from agentrl.rollout.loop.loop_drawer import LoopDrawer, LoopSettings
from agentrl.rollout.play.episodes import Rollout
from agentrl.rollout.play.filters import NO_SPREAD, drop_reason
from agentrl.rollout.play.opponents import POLICY, Opponents, open_opponents
from agentrl.rollout.play.remote import EpisodeOrder
from agentrl.train.async_order import AsyncOrder, check_own_weights
from agentrl.train.config import TrainConfig
from agentrl.train.handover import HandOver
from agentrl.train.learner import Learner
from agentrl.train.order import Collect, InTurn, StepOrder
from agentrl.train.rows import drawer_of, filters_of, teach
from agentrl.types import SamplingParams

Drawer: TypeAlias = GroupDrawer | LoopDrawer


def order_of(config: TrainConfig, tokenizer: Any, vision: Vision | None) -> EpisodeOrder:
    """The settings with which worker processes play the episodes of a run."""
    order = EpisodeOrder.of(config, tokenizer, vision)
    return replace(order, failures=config.failures.policy(), at_once=config.at_once)


def open_drawer(
    config: TrainConfig, rollout: Rollout, buffer: GroupBuffer, warn: Callable[[str], None]
) -> tuple[Drawer, Rollout]:
    """The object that draws each step's groups of episodes, and the rollout for evaluations.

    Without `staleness`, the groups of a step are played together, and an engine with lockstep repeats a step to the
    bit. With `staleness`, a loop plays groups without a pause. Raises ConfigError for an Env with seats and
    `staleness`.
    """
    phases = PhaseSlots(config.at_once) if config.at_once else None
    rollout = replace(rollout, failures=config.failures.policy(), phases=phases)
    if not config.staleness:
        return drawer_of(config, rollout, buffer, warn), rollout
    if rollout.envs.cls.seats:
        raise ConfigError(
            f"{rollout.envs.cls.__name__} has seats, which are played in turn with the updates: leave out staleness"
        )
    filters = filters_of(config)
    settings = LoopSettings(
        groups=config.prompts_per_step,
        seed=config.seed,
        sampling_params=SamplingParams(temperature=config.temperature),
        teach=lambda groups: teach(groups, config, filters),
        why=lambda group: drop_reason(filters, group) or NO_SPREAD,
        refill=config.refill,
        staleness=config.staleness,
        stale=config.stale,
        steps=config.steps,
        keep_unscored=not config.learns_from_rewards,
    )
    drawer = LoopDrawer(rollout, buffer, settings)
    return drawer, drawer.evaluating


def open_trained_engine(
    config: TrainConfig, run: Path, learner: Learner, tokenizer: Any, renderer: Renderer, say: Callable[[str], None]
) -> TrainedEngine:
    """The engine of a run. With `staleness`, the weights of this engine may change at any time. Raises ConfigError."""
    training = TrainingParts(run, learner.device.type, config.dtype, say, own_weights=config.staleness > 0)
    parts = EngineParts(tokenizer, renderer, lambda: learner.model, config.concurrency, training)
    engine = open_engine(config.engine, parts, config.engine_config)
    if not isinstance(engine, TrainedEngine):
        raise ConfigError(f"engine {config.engine} cannot take the trained weights: use local or sglang")
    if not config.staleness:
        return engine
    check_own_weights(engine, config)
    return PausableEngine(engine)


def open_order(config: TrainConfig, drawer: Drawer, handover: HandOver, collect: Collect) -> StepOrder:
    """The order of rollouts and updates: in turn, or with `staleness` at the same time."""
    if isinstance(drawer, LoopDrawer):
        return AsyncOrder(config.staleness, drawer, handover, collect)
    return InTurn(handover, collect)


def run_opponents(
    config: TrainConfig, env: type[Env], tokenizer: Any, stack: AsyncExitStack
) -> tuple[Opponents, Opponents]:
    """The opponents in training, and the opponents in evaluations. `stack` closes their engines. Raises ConfigError."""
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
