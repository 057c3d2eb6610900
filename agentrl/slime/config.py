"""What `adapt` is told: the Env, its configuration and limits, the model and the engine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator

from agentrl.errors import ConfigError
from agentrl.monitor.numerics import NumericsConfig
from agentrl.types import JSON, Limits

CONFIG_FILE_VARIABLE = "AGENTRL_CONFIG"


class SlimeConfig(BaseModel):
    """The mapping under the key `agentrl` in the YAML file of slime's --custom-config-path.

    Where slime was started without one, the file named by the environment variable AGENTRL_CONFIG is read; there the
    mapping may also stand by itself.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    env: str | None = None
    """`my_env.py:MyEnv` or `package.module:MyEnv`. A row's metadata["env"] wins, for the Env alone."""
    env_config: dict[str, Any] = Field(default_factory=dict)
    limits: dict[str, Any] = Field(default_factory=dict)
    """Fields of `Limits`. A key given here wins over what slime's flags imply."""
    reward: str | None = None
    """Path of a reward function, as `env`; it replaces `Env.score`."""
    max_new_tokens: Literal["episode", "turn"] = "episode"
    """What slime's --rollout-max-response-len bounds: the whole response, as slime means it, or each turn."""
    model: str | None = None
    """Folder of the tokenizer. Default: --hf-checkpoint."""
    chat_template: str | None = None
    """File with a chat template to use instead of the tokenizer's."""
    chat_template_kwargs: dict[str, Any] | None = None
    """Default: --apply-chat-template-kwargs."""
    engine: str | None = None
    """URL of an SGLang server or router. Default: slime's router."""
    thinking: Literal["keep", "strip"] = "keep"
    """Earlier thoughts that the template would drop: keep them as sampled, or strip them, which may fan one episode out
    into several samples."""
    park_s: float = Field(default=1800.0, ge=0, allow_inf_nan=False)
    """Seconds that an aborted episode is kept for slime to send it back. 0: never; it restarts from nothing."""
    park_folder: str | None = Field(default=None, min_length=1)
    """Folder for what parked episodes need. Default: a temporary one of this process, removed at its end."""

    numerics: NumericsConfig = NumericsConfig()
    """When `agentrl.slime.watch_log_probs` warns, and when it stops the run."""

    @field_validator("limits")
    @classmethod
    def _known_limits(cls, limits: dict[str, Any]) -> dict[str, Any]:
        known = [field.name for field in fields(Limits)]
        if unknown := ", ".join(sorted(set(limits) - set(known))):
            raise ValueError(f"unknown key {unknown}; the keys are {', '.join(known)}")
        try:
            valid = TypeAdapter(Limits).validate_python(limits)
        except ValidationError as exc:
            raise ValueError(_problems(exc)) from exc
        return {name: getattr(valid, name) for name in limits}

    @classmethod
    def from_args(cls, args: Any) -> Self:
        """Find and validate the configuration; all defaults where there is none. Raises ConfigError."""
        where, given = _find(args)
        if not isinstance(given, Mapping):
            raise ConfigError(f"{where} must be a mapping such as {{env: my_env.py:MyEnv}}, not {given!r}")
        try:
            return cls.model_validate(given)
        except ValidationError as exc:
            raise ConfigError(f"{where}: {_problems(exc)} (known keys: {', '.join(cls.model_fields)})") from exc

    def env_path(self, metadata: Mapping[str, JSON]) -> str:
        """The path of the Env for a row. Raises ConfigError if nobody names one."""
        path = metadata.get("env") or self.env
        if path is None:
            raise ConfigError(
                "no environment: put `agentrl: {env: my_env.py:MyEnv}` into the YAML file of --custom-config-path "
                f"(or the one that {CONFIG_FILE_VARIABLE} names), or a path into the row's metadata['env']"
            )
        if not isinstance(path, str):
            raise ConfigError(f"metadata['env'] must be a path such as my_env.py:MyEnv, not {path!r}")
        return path

    def model_path(self, args: Any) -> str:
        if path := self.model or getattr(args, "hf_checkpoint", None):
            return str(path)
        raise ConfigError("no tokenizer: give slime --hf-checkpoint, or set `model` under `agentrl`")

    def engine_url(self, args: Any) -> str:
        if self.engine:
            return self.engine
        ip, port = getattr(args, "sglang_router_ip", None), getattr(args, "sglang_router_port", None)
        if ip is None or port is None:
            raise ConfigError(
                "no engine: slime has no router (--sglang-router-ip, --sglang-router-port); "
                "set `engine` under `agentrl` to the URL of an SGLang server"
            )
        return f"http://{ip}:{port}"

    def template_text(self) -> str | None:
        if self.chat_template is None:
            return None
        try:
            return Path(self.chat_template).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as exc:
            raise ConfigError(f"chat_template {self.chat_template}: {exc}; name a readable Jinja file") from exc

    def template_kwargs(self, args: Any) -> dict[str, Any]:
        given = self.chat_template_kwargs
        return dict(getattr(args, "apply_chat_template_kwargs", None) or {}) if given is None else dict(given)

    def refuse_fan_out(self, args: Any) -> None:
        """Raises ConfigError where episodes become several samples and slime is told what it cannot do with them."""
        if self.thinking == "strip" and (problems := fan_out_problems(args)):
            raise ConfigError(f"thinking: strip gives several samples of one episode: {'; '.join(problems)}")

    def episode_limits(self, args: Any, sampling_params: Mapping[str, Any], *, evaluation: bool) -> Limits:
        """What slime's flags imply, overridden by the keys of `limits`."""
        context = getattr(args, "eval_max_context_len", None) if evaluation else None
        implied = {
            "context": context or getattr(args, "rollout_max_context_len", None),
            "tokens" if self.max_new_tokens == "episode" else "turn_tokens": sampling_params.get("max_new_tokens"),
        }
        return Limits(**{**implied, **self.limits})


_NORMALISED = ("grpo", "gspo", "cispo", "reinforce_plus_plus_baseline")


def fan_out_problems(args: Any) -> list[str]:
    """What slime was told that it cannot do where one call gives a list of samples: each flag, and the remedy."""
    problems = []
    if getattr(args, "partial_rollout", False):
        problems.append("remove --partial-rollout, which reads each as one sample")
    if getattr(args, "group_rm", False):
        problems.append("remove --group-rm, which scores each as one sample")
    if "fully_async" in str(getattr(args, "rollout_function_path", None)):
        problems.append("remove --rollout-function-path, for slime's fully-async rollout trains aborted lists")
    if str(getattr(args, "dynamic_sampling_filter_path", None)).startswith(("slime.", "miles.")):
        problems.append("replace --dynamic-sampling-filter-path by a filter of agentrl.slime, which takes lists")
    normalised = (
        getattr(args, "rewards_normalization", False) and getattr(args, "advantage_estimator", "") in _NORMALISED
    )
    if normalised and not getattr(args, "custom_reward_post_process_path", None):
        problems.append(
            "add --custom-reward-post-process-path agentrl.slime.post_process_rewards, for slime takes the mean reward "
            "over the whole batch where prompts have unequal numbers of samples"
        )
    return problems


def _find(args: Any) -> tuple[str, Any]:
    """A name for the configuration, to be used in messages, and what stands there."""
    if (given := getattr(args, "agentrl", None)) is not None:
        return "the key 'agentrl' of --custom-config-path", given
    if path := os.environ.get(CONFIG_FILE_VARIABLE):
        return f"{path} (named by {CONFIG_FILE_VARIABLE})", _read(path)
    return "", {}


@cache
def _read(path: str) -> Any:
    """Once a process: a file that is edited while a run goes on must not change the run."""
    try:
        given = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as exc:
        raise ConfigError(f"{CONFIG_FILE_VARIABLE} names {path}: {exc.strerror}; name a readable YAML file") from exc
    except (yaml.YAMLError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{path} (named by {CONFIG_FILE_VARIABLE}): not YAML: {' '.join(str(exc).split())}") from exc
    return given["agentrl"] if isinstance(given, Mapping) and "agentrl" in given else given


def _problems(exc: ValidationError) -> str:
    """One line: each key and what is wrong with it."""
    return "; ".join(
        f"{'.'.join(map(str, error['loc']))}: {error['msg'].removeprefix('Value error, ')}".removeprefix(": ")
        for error in exc.errors()
    )
