"""The configuration keys for playing episodes, which all trainers and hosts share."""

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
    """The configuration keys that all trainers and hosts share. Subclasses add keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    env: str | None = None
    """Path of the Env: `file.py:Class` or `package.module:Class`."""
    env_config: dict[str, Any] = Field(default_factory=dict)
    """The Env's configuration."""
    limits: Annotated[dict[str, Any], Limits] = Field(default_factory=dict)
    """Fields of `Limits`: turns, tokens, max_tokens_per_turn, ..."""
    reward: str | None = None
    """Path of a reward function that replaces `Env.score`, written like `env`."""
    thinking: Thinking = "keep"
    """Earlier thoughts that the template would drop from the next prompt. "keep" keeps the thoughts as sampled. "strip"
    drops the thoughts, and begins a new segment each time."""
    special_tokens: SpecialTokens = "keep"
    """Special tokens in the text of users, tools and documents. "keep" encodes special tokens as the template's own
    render does. "as_text" encodes them as text, so that no text can forge a turn."""
    opponents: list[str] = Field(default_factory=lambda: ["policy"], min_length=1)
    """In an Env with seats: the opponents of the policy, which change from task to task in this order. An opponent is
    `policy` (the policy itself; all seats are trained), the path `file.py:function` of a function of messages and
    tools, or, in the embedded trainer, a folder with older weights."""
    gateway: GatewayConfig = GatewayConfig()
    """The HTTP server at which agents reach their model. The default serves only agents on this machine."""

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
        """Validate the mapping at `where`. Raises ConfigError, whose single line names each wrong key."""
        if not isinstance(settings, Mapping):
            raise ConfigError(f"{where} must be a mapping such as {{env: my_env.py:MyEnv}}, not {settings!r:.200}")
        try:
            return cls.model_validate(settings)
        except ValidationError as exc:
            raise ConfigError(f"{where}: {problems(exc, cls)}") from exc

    def options(self, sampling_params: SamplingParams | None = None, **implied: JSON) -> EpisodeOptions:
        """The options of the episodes. The configured `limits` override the `implied` limits.

        Raises ConfigError for options that contradict each other.
        """
        return EpisodeOptions(
            limits=Limits(**{**implied, **self.limits}),
            sampling_params=sampling_params or SamplingParams(),
            thinking=self.thinking,
            special_tokens=self.special_tokens,
            gateway=self.gateway,
        )

    @property
    def splits(self) -> str:
        """The setting with which an episode may have several segments; "" if each episode is one segment."""
        if self.thinking == "strip":
            return "thinking: strip"
        return "limits.compact_at" if self.limits.get("compact_at") else ""

    def reward_function(self) -> RewardFn | None:
        """The function that replaces `Env.score`. Raises ConfigError."""
        return load_reward(self.reward)


def load_reward(path: str | None, key: str = "reward ") -> RewardFn | None:
    """The reward function at a path. Raises ConfigError if the object there is no function; `key` begins the
    message."""
    if path is None:
        return None
    function = load_object(path)
    if not callable(function):
        raise ConfigError(f"{key}{path} is {function!r:.80}, not a function of a trajectory; name one")
    return function  # type: ignore[no-any-return]
