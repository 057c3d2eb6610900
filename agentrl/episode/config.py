"""The configuration keys for the play of episodes, declared once for every trainer and host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from agentrl._util.config_errors import problems
from agentrl._util.loading import load_object
from agentrl.episode.gateway_config import GatewayConfig
from agentrl.episode.options import EpisodeOptions, RewardFn, SpecialTokens, Thinking
from agentrl.errors import ConfigError
from agentrl.types import JSON, Limits, SamplingParams


class EpisodeConfig(BaseModel):
    """The keys of every trainer and host. Subclasses add keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    env: str | None = None
    """The Env: `file.py:Class` or `package.module:Class`."""
    env_config: dict[str, Any] = Field(default_factory=dict)
    """The Env's configuration."""
    limits: Annotated[dict[str, Any], Limits] = Field(default_factory=dict)
    """Fields of `Limits`: turns, tokens, max_tokens_per_turn, ..."""
    reward: str | None = None
    """Path of a reward function that replaces `Env.score`, written like `env`."""
    thinking: Thinking = "keep"
    """Earlier thoughts that the template would drop: kept as sampled, or stripped, each time in a new segment."""
    special_tokens: SpecialTokens = "keep"
    """Special tokens in the text of users, tools and documents: kept, as in the template's own render, or encoded as
    text, so that none can forge a turn."""
    opponents: list[str] = Field(default_factory=lambda: ["policy"], min_length=1)
    """In an Env with seats, who plays against the policy, in turn from task to task: policy (itself, all seats are
    trained), `file.py:function` of messages and tools, or, in the embedded trainer, a folder with older weights."""
    gateway: GatewayConfig = GatewayConfig()
    """The address at which agents reach their model. The default serves agents of this machine only."""

    @field_validator("limits")
    @classmethod
    def _known_limits(cls, limits: dict[str, Any]) -> dict[str, Any]:
        valid = Limits.of(limits)
        return {name: getattr(valid, name) for name in limits}

    @model_validator(mode="after")
    def _check_options(self) -> Self:
        self.options()
        return self

    @classmethod
    def parse(cls, where: str, settings: Any) -> Self:
        """Validate the mapping at `where`. Raises ConfigError with one line that names each wrong key."""
        if not isinstance(settings, Mapping):
            raise ConfigError(f"{where} must be a mapping such as {{env: my_env.py:MyEnv}}, not {settings!r:.200}")
        try:
            return cls.model_validate(settings)
        except ValidationError as exc:
            raise ConfigError(f"{where}: {problems(exc, cls)}") from exc

    def options(self, sampling_params: SamplingParams | None = None, **implied: JSON) -> EpisodeOptions:
        """The options of the episodes. The keys of `limits` override the `implied` limits.

        Raises ConfigError for options that exclude each other.
        """
        return EpisodeOptions(
            limits=Limits(**{**implied, **self.limits}),
            sampling_params=sampling_params or SamplingParams(),
            thinking=self.thinking,
            special_tokens=self.special_tokens,
            gateway=self.gateway,
        )

    def reward_function(self) -> RewardFn | None:
        """The function that replaces `Env.score`. Raises ConfigError."""
        return load_reward(self.reward)


def load_reward(path: str | None, key: str = "reward ") -> RewardFn | None:
    """The function at a path. `key` begins the message of the ConfigError for other objects."""
    if path is None:
        return None
    function = load_object(path)
    if not callable(function):
        raise ConfigError(f"{key}{path} is {function!r:.80}, not a function of a trajectory; name one")
    return function  # type: ignore[no-any-return]
