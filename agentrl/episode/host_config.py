"""The configuration keys that are the same for all hosts (trainers such as slime): the Env, its limits, the model, the
engine."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from agentrl._util.yaml_files import read_yaml
from agentrl.engine.base import RETRY_S
from agentrl.env.factory import EnvFactory, load_env
from agentrl.episode.config import EpisodeConfig
from agentrl.episode.options import EpisodeOptions
from agentrl.errors import ConfigError
from agentrl.types import JSON, SamplingParams

CONFIG_FILE_VARIABLE = "AGENTRL_CONFIG"


class ParkingConfig(BaseModel):
    """The storage of aborted episodes until they are resumed.

    If `folder` is on storage that all nodes share, any node can resume any episode. A single process owns an episode at
    a time. If the owner dies, another process may continue from the last saved state.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    folder: str | None = Field(default=None, min_length=1)
    """Folder for the states of episodes. Default: a temporary folder of this process, removed at its end."""
    keep_s: float = Field(default=1800.0, ge=0, allow_inf_nan=False)
    """Seconds for which an aborted episode is kept. With 0, no episode is kept, and an aborted episode restarts."""
    dead_s: float = Field(default=60.0, gt=0, allow_inf_nan=False)
    """Seconds without a heartbeat after which a process on another node counts as dead. The clocks of network file
    systems may lag by some seconds."""
    every_turn: bool = False
    """Also save each episode after each turn, and keep an ended episode until this process ends or `keep_s` is over. So
    a killed process loses no finished turn. The cost is an `Env.snapshot` per turn. Needs `folder`."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.every_turn and self.folder is None:
            raise ValueError("every_turn needs `folder`, on storage that all nodes see")
        return self


class TemplateConfig(EpisodeConfig):
    """The keys for the tokenizer and the chat template of a host's model."""

    model: str | None = None
    """Folder of the tokenizer. Default: the host's setting."""
    chat_template: str | None = None
    """File with a chat template to use instead of the tokenizer's."""
    chat_template_kwargs: dict[str, Any] | None = None
    """Arguments of the chat template. Default: the host's setting."""

    def template_text(self) -> str | None:
        """The text of `chat_template`; None if the tokenizer's template is used. Raises ConfigError for an unreadable
        file."""
        if self.chat_template is None:
            return None
        try:
            return Path(self.chat_template).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as exc:
            raise ConfigError(f"chat_template {self.chat_template}: {exc}; name a readable Jinja file") from exc


class HostedConfig(TemplateConfig):
    """The keys of a host's `agentrl` mapping. A subclass adds the host's own keys.

    A data row's metadata["env"] replaces `env`. This Env gets `env_config`, unless `env_configs` has an entry for it.
    `limits` override the host's flags. With `thinking: strip` or `limits.compact_at`, an episode
    may become several samples.
    """

    env_configs: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Path of an Env, as written in the data rows -> its configuration in place of `env_config`."""

    engine: str | None = None
    """URL of an SGLang server or router. Default: the host's setting."""
    engine_retry_s: float = Field(default=RETRY_S, ge=0, allow_inf_nan=False)
    """Seconds for which requests are repeated if the engine is unavailable or aborts by itself. Afterwards the episode
    fails."""
    parking: ParkingConfig = ParkingConfig()
    """How aborted episodes are kept until the host sends them back."""

    def options(self, sampling_params: SamplingParams | None = None, **implied: JSON) -> EpisodeOptions:
        return replace(super().options(sampling_params, **implied), engine_retry_s=self.engine_retry_s)

    def env_config_of(self, path: str) -> dict[str, Any]:
        """The configuration of the Env at a path."""
        return self.env_configs.get(path, self.env_config)

    def env_factory(self, path: str) -> EnvFactory:
        """The factory of the Env at a path, with the configuration of `env_config_of`. Raises ConfigError."""
        load_env(path)  # an Env that cannot be found has no wrong configuration
        try:
            return EnvFactory(path, self.env_config_of(path))
        except ConfigError as exc:
            if path in self.env_configs or path == self.env or not self.env_config:
                raise
            raise ConfigError(
                f"{exc}; it got the env_config of {self.env}: give it its own, as in `env_configs: {{{path!r}: {{}}}}`"
            ) from exc


def from_environment() -> tuple[str, Any]:
    """The name and the content of the configuration file in AGENTRL_CONFIG. Both are empty if the variable is not
    set."""
    if path := os.environ.get(CONFIG_FILE_VARIABLE):
        return f"{path} (named by {CONFIG_FILE_VARIABLE})", _read(path)
    return "", {}


@cache
def _read(path: str) -> Any:
    """Read a configuration file. Cached, so that an edit of the file does not change a run."""
    content = read_yaml(path, CONFIG_FILE_VARIABLE)
    return content.get("agentrl", content)
