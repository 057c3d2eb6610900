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
"""A function that scores a finished trajectory in place of `Env.score`."""

ParkFn: TypeAlias = "Callable[[Parked], Awaitable[None]]"
"""A function that takes over an aborted episode. The function then owns `Parked.env` and must close it. The function
raises an exception if it cannot keep the episode."""


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
    own render does, so they can forge a turn. "as_text" encodes special tokens as text. A metric counts the special
    tokens."""
    gateway: GatewayConfig = field(default_factory=GatewayConfig)
    """The address of the HTTP server at which an AgentEnv's agent reaches its model."""
    engine_retry_s: float = RETRY_S
    """Seconds for which a request is repeated while the engine aborts it without sampling a token. Afterwards the
    episode fails."""

    def __post_init__(self) -> None:
        if self.thinking == "strip" and self.limits.observation_tokens is not None:
            raise ConfigError('thinking "strip" renders whole observations again: leave out limits.observation_tokens')

    def renderer(self, renderer: Renderer) -> Renderer:
        """The renderer adapted to `special_tokens`. Raises TemplateError if the tokenizer cannot encode special tokens
        as text."""
        return renderer.as_text() if self.special_tokens == "as_text" else renderer


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeHooks:
    """Hooks for a program with many episodes. A program with a few episodes needs no hooks."""

    aborted: Callable[[], bool] | None = None
    """A function that tells whether to stop. It is called before reset, before each generation, around each step and
    before scoring. Once it returns True, no work is started. If the engine aborts a generation while it returns False,
    for example to update weights, sampling continues in the same turn. If `aborted` is None, such an abort ends the
    episode."""
    slots: PhaseSlots | None = None
    """Maximum numbers of episodes that reset, step and score at the same time."""
    on_turn: Callable[[Trajectory], None] | None = None
    """Called after each turn."""
    park: ParkFn | None = None
    """Called with an aborted episode, to keep it for a later `resume_episode`. After an error, info["not_parked"] has
    the reason. An episode that was aborted before its reset has no state, and is not parked."""
    save: ParkFn | None = None
    """Called with the state of a running episode, after each turn, and at the end before scoring. The next turn waits
    for the call. The Env stays open. Not called for agents, nor for an Env that has neither `snapshot` nor
    `deterministic`. After a ResumeError the episode fails. After any other error the episode goes on, and
    info["not_saved"] has the reason."""


def slot(hooks: EpisodeHooks, phase: Phase) -> AbstractAsyncContextManager[None]:
    """An async context manager that holds a slot of a phase, if the phase has a bound."""
    return nullcontext() if hooks.slots is None else hooks.slots.of(phase)
