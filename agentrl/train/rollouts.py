"""The rollout, and the order of rollouts and updates, by the configuration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

from agentrl.episode.phases import PhaseSlots
from agentrl.errors import ConfigError
from agentrl.models.vision import Vision
from agentrl.rollout.loop.buffer import GroupBuffer
from agentrl.rollout.loop.drawing import GroupDrawer
from agentrl.rollout.loop.loop_drawer import LoopDrawer, LoopSettings
from agentrl.rollout.play.filters import NO_SPREAD, drop_reason
from agentrl.rollout.play.groups import Rollout
from agentrl.rollout.play.remote import EpisodeOrder
from agentrl.train.beside import FullyAsync
from agentrl.train.config import TrainConfig
from agentrl.train.handover import HandOver
from agentrl.train.order import Collect, InTurn, StepEnd, StepOrder
from agentrl.train.overlap import Overlap
from agentrl.train.rows import drawer_of, filters_of, teach
from agentrl.types import SamplingParams

Drawer: TypeAlias = GroupDrawer | LoopDrawer


def order_of(config: TrainConfig, tokenizer: Any, vision: Vision | None) -> EpisodeOrder:
    """The workers' needs for the episodes of a run."""
    order = EpisodeOrder.of(config, tokenizer, vision)
    return replace(order, failures=config.failures.policy(), at_once=config.at_once.phases())


def open_drawer(
    config: TrainConfig, rollout: Rollout, buffer: GroupBuffer, warn: Callable[[str], None]
) -> tuple[Drawer, Rollout]:
    """The rollout of each step's groups, and the rollout of evaluations.

    Whole rollouts in waves, which an engine with lockstep repeats to the bit, or a loop for `fully_async` and
    `over_sample`.
    """
    bounds = config.at_once.phases()
    rollout = replace(rollout, failures=config.failures.policy(), phases=PhaseSlots(bounds) if bounds else None)
    if not config.fully_async and config.over_sample == 1:
        return drawer_of(config, rollout, buffer, warn), rollout
    if rollout.envs.cls.seats:
        raise ConfigError(
            f"{rollout.envs.cls.__name__} has seats, which fully_async and over_sample do not play: leave them out"
        )
    filters = filters_of(config)
    settings = LoopSettings(
        groups=config.prompts_per_step,
        seed=config.seed,
        sampling_params=SamplingParams(temperature=config.temperature),
        teach=lambda groups: teach(groups, config, filters),
        why=lambda group: drop_reason(filters, group) or NO_SPREAD,
        refill=config.refill,
        over_sample=config.over_sample,
        staleness=config.staleness,
        stale=config.stale,
        steps=config.steps,
        keep_unscored=not config.learns_from_rewards,
    )
    drawer = LoopDrawer(rollout, buffer, settings)
    return drawer, drawer.evaluating


def open_order(
    config: TrainConfig, drawer: Drawer, handover: HandOver, collect: Collect, state: Callable[[], StepEnd]
) -> StepOrder:
    """Rollouts and updates in turn, whole rollouts during updates, or episodes that never stop."""
    if config.fully_async:
        assert isinstance(drawer, LoopDrawer)
        return FullyAsync(config.staleness, drawer, handover, collect, eval_share=config.eval_share)
    if config.staleness:
        return Overlap(config.staleness, config.steps, handover, collect, state)
    return InTurn(handover, collect)
