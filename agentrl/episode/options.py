"""The settings of an episode, and the hooks of the program around the episode."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from agentrl.engine.base import RETRY_S
from agentrl.episode.gateway_config import GatewayConfig
from agentrl.errors import ConfigError
from agentrl.types import Limits, MaybeAwait, Reward, SamplingParams

if TYPE_CHECKING:
    from agentrl.episode.phases import Phase, PhaseSlots
    from agentrl.episode.state import Parked
    from agentrl.render.base import Renderer
    from agentrl.trajectory.trajectory import Trajectory

Thinking: TypeAlias = Literal["keep", "strip"]

SpecialTokens: TypeAlias = Literal["keep", "as_text"]

RewardFn: TypeAlias = "Callable[[Trajectory], MaybeAwait[float | Reward]]"
"""A reward function: scores a finished trajectory in place of `Env.score`."""

ParkFn: TypeAlias = "Callable[[Parked], Awaitable[None]]"
"""Takes over an aborted episode. The function then owns `Parked.env` and must close it. Raises if parking fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeOptions:
    """The settings of an episode, usually the same for all episodes of a run. Each has a default."""

    limits: Limits = field(default_factory=Limits)
    sampling_params: SamplingParams = field(default_factory=SamplingParams)
    """Parameters of the engine: temperature, top_p, sampling_seed, ..."""
    thinking: Thinking = "keep"
    """Some templates drop earlier thoughts from the next prompt. "keep" keeps the sampled thoughts. "strip" follows the
    template, and begins a new segment of the trajectory each time (see `ReasoningStripper`)."""

    special_tokens: SpecialTokens = "keep"
    """Special tokens such as `<|im_end|>` in users' text, tools and documents. "keep" encodes them as the template's
    own render does, so they can forge a turn. "as_text" encodes them as text. A metric counts them."""
    gateway: GatewayConfig = field(default_factory=GatewayConfig)
    """The address at which an AgentEnv's agent reaches its model."""
    engine_retry_s: float = RETRY_S
    """Seconds of repeated requests after the engine's own aborts, without a token, before the episode fails."""

    def __post_init__(self) -> None:
        if self.thinking == "strip" and self.limits.observation_tokens is not None:
            raise ConfigError('thinking "strip" renders whole observations again: leave out limits.observation_tokens')

    def renderer(self, renderer: Renderer) -> Renderer:
        """The renderer for these options. Raises TemplateError if the tokenizer lacks a required ability."""
        return renderer.as_text() if self.special_tokens == "as_text" else renderer


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeHooks:
    """Hooks for a program with many episodes. A program with a few episodes needs no hooks."""

    aborted: Callable[[], bool] | None = None
    """The flag that stops episodes. It is read before reset, before each generation, around each step and before
    scoring. Once it is True, no work is started. If the engine aborts a generation while the flag is False, for example
    to update weights, sampling continues in the same turn. Without a flag, such an abort ends the episode."""
    slots: PhaseSlots | None = None
    """Bounds on how many episodes reset, step and score at once."""
    on_turn: Callable[[Trajectory], None] | None = None
    """Called after each turn."""
    park: ParkFn | None = None
    """Takes an aborted episode for a later `resume_episode`. After an error, info["not_parked"] has the reason. An
    episode that was aborted before its reset has no state, and is not parked."""
    save: ParkFn | None = None
    """Takes the state of a running episode: after each turn, and at the end before scoring. The next turn waits for the
    call. The Env stays open. Not called for agents, nor for an Env that can only be kept open. After a ResumeError the
    episode fails. After any other error the episode goes on, and info["not_saved"] has the reason."""


def slot(hooks: EpisodeHooks, phase: Phase) -> AbstractAsyncContextManager[None]:
    """A slot of a phase, if there is a bound."""
    return nullcontext() if hooks.slots is None else hooks.slots.of(phase)
