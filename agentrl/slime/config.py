"""The configuration of `adapt`: the keys that all trainers share, and the settings that follow from slime's flags."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, Self, cast
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from agentrl.episode.host_config import CONFIG_FILE_VARIABLE, HostedConfig, from_environment
from agentrl.episode.options import EpisodeOptions, RewardFn
from agentrl.errors import ConfigError
from agentrl.monitor.numerics import NumericsConfig
from agentrl.slime.host import HostArgs
from agentrl.types import JSON, SamplingParams

__all__ = ["CONFIG_FILE_VARIABLE", "SlimeConfig", "fan_out_problems"]

log = logging.getLogger("agentrl")

_KEPT = 16
"""The number of configurations in the cache. A run has a single configuration."""


class SlimeConfig(HostedConfig):
    """The mapping under the key `agentrl` in the YAML file of slime's --custom-config-path.

    Without that flag, the file in the environment variable AGENTRL_CONFIG is read. There the key `agentrl` may be left
    out.
    """

    max_new_tokens: Literal["episode", "turn"] = "episode"
    """The tokens that slime's --rollout-max-response-len limits. episode: the tokens of the whole response, as in slime
    itself. turn: the tokens of each turn."""
    staleness: int = Field(default=2, ge=1)
    """With `agentrl.slime.generate_rollout_fully_async`: the most rollouts between the beginning of a group and its
    training."""
    stale: Literal["drop", "mask"] = "drop"
    """The treatment of groups that began too many rollouts ago. drop: the group is dropped, and counted. mask: the
    group is trained unchanged."""
    workers: int = Field(default=0, ge=0)
    """The number of processes that play the episodes. 0: slime's rollout manager plays the episodes. In a Ray cluster
    the processes are actors, with one CPU each, on any node. Without Ray they are processes of this machine."""
    numerics: NumericsConfig = NumericsConfig()
    """The limits at which `agentrl.slime.watch_log_probs` warns, and stops the run."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_credit(cls, settings: Any) -> Any:
        if isinstance(settings, Mapping) and (
            key := next((key for key in ("credit", "discount") if key in settings), None)
        ):
            raise ValueError(
                f"{key}: slime takes one number for each sample, so turns cannot have their own; remove it, or train "
                "with agentrl train"
            )
        return settings

    @classmethod
    def from_args(cls, args: Any) -> Self:
        """Find and validate the configuration. Without a configuration, all keys have their defaults. Raises
        ConfigError.

        slime's hooks call this method for every sample, so the configuration is cached.
        """
        where, settings = "the key 'agentrl' of --custom-config-path", HostArgs.of(args).agentrl
        if settings is None:
            where, settings = from_environment()
        key = (cls, where, repr(settings))
        if key not in _parsed:
            while len(_parsed) >= _KEPT:
                _parsed.pop(next(iter(_parsed)), None)
            _parsed[key] = cls.parse(where, settings)
        return cast(Self, _parsed[key])

    def env_path(self, metadata: Mapping[str, JSON]) -> str:
        """The path of the Env for a row with this metadata. Raises ConfigError if neither the row nor the configuration
        names an Env."""
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
        if path := self.model or HostArgs.of(args).hf_checkpoint:
            return str(path)
        raise ConfigError("no tokenizer: give slime --hf-checkpoint, or set `model` under `agentrl`")

    def engine_url(self, args: Any) -> str:
        flags = HostArgs.of(args)
        if flags.sglang_router_ip is not None and flags.sglang_router_port is not None:
            router = f"http://{flags.sglang_router_ip}:{flags.sglang_router_port}"
            if self.engine and self.engine.rstrip("/") != router:
                _warn_of_other_engine(self.engine, router)
            return self.engine or router
        if not self.engine:
            raise ConfigError(
                "no engine: slime has no router (--sglang-router-ip, --sglang-router-port); "
                "set `engine` under `agentrl` to the URL of an SGLang server"
            )
        return self.engine

    def template_kwargs(self, args: Any) -> dict[str, Any]:
        """The template arguments for training. `task.template_kwargs` adds the arguments of a data set or a sample."""
        arguments = self.chat_template_kwargs
        return dict(HostArgs.of(args).apply_chat_template_kwargs or {}) if arguments is None else dict(arguments)

    def reward_function(self) -> RewardFn | None:
        """The function that replaces `Env.score`. Raises ConfigError, also for a reward function of groups: under
        slime, only slime has the whole groups."""
        reward = super().reward_function()
        if hasattr(reward, "of_group"):
            path = str(self.reward).replace(".py:", ".").replace("/", ".").replace(":", ".")
            raise ConfigError(
                f"reward {self.reward} scores groups together, and slime has the groups: remove the key, and give "
                f"slime --group-rm --custom-rm-path {path}"
            )
        return reward

    def check_fan_out(self, flags: HostArgs, *, takes_lists: bool) -> None:
        """Raises ConfigError if episodes become several samples, and a flag of slime forbids that."""
        if self.splits and (problems := fan_out_problems(flags, takes_lists=takes_lists)):
            raise ConfigError(f"{self.splits} gives several samples of one episode: {'; '.join(problems)}")

    def slime_options(self, args: Any, sampling_params: Mapping[str, Any], *, evaluation: bool) -> EpisodeOptions:
        """The options of an episode. The limits come from slime's flags."""
        flags, params = HostArgs.of(args), dict(sampling_params)
        context = (flags.eval_max_context_len if evaluation else None) or flags.rollout_max_context_len
        budget = "tokens" if self.max_new_tokens == "episode" else "max_tokens_per_turn"
        limits = {"context": context, budget: params.pop("max_new_tokens", None)}
        return self.options(cast(SamplingParams, params), **limits)


@cache
def _warn_of_other_engine(engine: str, router: str) -> None:
    log.warning(
        "episodes are sampled at %s (`engine` under `agentrl`), not at slime's router %s: slime never sends its "
        "weights there; remove `engine`, unless that server has slime's engines behind it",
        engine,
        router,
    )


def is_loopback(url: str | None) -> bool:
    """Whether a URL can be reached only from the same machine."""
    host = urlsplit(url or "").hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")


_parsed: dict[tuple[type[SlimeConfig], str, str], SlimeConfig] = {}


def fan_out_problems(args: Any, *, takes_lists: bool) -> list[str]:
    """The flags that fail if a call returns a list of samples, each with the remedy.

    `takes_lists`: whether the rollout function accepts lists; see `host.takes_lists`.
    """
    flags = HostArgs.of(args)
    problems = []
    if flags.partial_rollout and flags.plays_ahead is not True:
        problems.append("remove --partial-rollout, which reads each as one sample")
    if flags.group_rm:
        problems.append("remove --group-rm, which scores each as one sample")
    if not takes_lists:
        problems.append("remove --rollout-function-path: fully-async rollout takes lists only from slime 0.4 on")
    if flags.own_filter:
        problems.append("replace --dynamic-sampling-filter-path by a filter of agentrl.slime, which takes lists")
    if (flags.centred or flags.batch_centred) and not flags.custom_reward_post_process_path:
        problems.append(
            "add --custom-reward-post-process-path agentrl.slime.post_process_rewards: slime counts each sample of an "
            "episode in the mean reward, and where prompts have unequal numbers of samples it takes the whole batch's"
        )
    return problems
