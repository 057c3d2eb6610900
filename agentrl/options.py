"""What an episode may be told: its settings, and what the program around it needs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from agentrl.engine.base import SamplingParams
from agentrl.errors import ConfigError
from agentrl.types import Limits, MaybeAwait, Reward

if TYPE_CHECKING:
    from agentrl.parking import Parked
    from agentrl.trajectory import Trajectory

Thinking: TypeAlias = Literal["keep", "strip"]

RewardFn: TypeAlias = "Callable[[Trajectory], MaybeAwait[float | Reward]]"
"""A reward function: scores a finished trajectory in place of `Env.score`."""

ParkFn: TypeAlias = "Callable[[Parked], Awaitable[None]]"
"""Takes over an aborted episode; from then on it closes `Parked.env`, if there is one. Raises if it cannot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeOptions:
    """The settings of an episode; mostly all episodes of a run have the same. Every one has a default."""

    limits: Limits = field(default_factory=Limits)
    sampling_params: SamplingParams = field(default_factory=SamplingParams)
    """What the engine is asked for: temperature, top_p, sampling_seed, ..."""
    thinking: Thinking = "keep"
    """Earlier thoughts that the template would drop from the next prompt: "keep" them as they were sampled, or "strip"
    them, which begins a new segment of the trajectory (see `Thoughts`)."""

    def __post_init__(self) -> None:
        if self.thinking == "strip" and self.limits.observation_tokens is not None:
            raise ConfigError('thinking "strip" renders whole observations again: leave out limits.observation_tokens')


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What a program that plays many episodes needs of each; one that plays a few needs none of it."""

    aborted: Callable[[], bool] | None = None
    """The flag that stops episodes: read before reset, before each generation, around each step and before scoring.
    Once it is set nothing new is started. A generation that ends in an abort while it is False goes on in the same turn
    (engines abort for weight updates). Without a flag, such an abort ends the episode."""
    on_turn: Callable[[Trajectory], None] | None = None
    """Called after each turn."""
    park: ParkFn | None = None
    """Takes an aborted episode, and `resume_episode` goes on with it. Where that fails, info["not_parked"] says why. An
    episode that was aborted before its reset is not parked, for there is nothing to keep."""
