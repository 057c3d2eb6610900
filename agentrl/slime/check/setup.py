"""What the rules look at: the flags, agentrl's configuration, the Env and the model."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml

from agentrl.env import Env, Envs
from agentrl.errors import ConfigError
from agentrl.slime.check.flags import Flags
from agentrl.slime.config import CONFIG_FILE_VARIABLE, SlimeConfig
from agentrl.slime.host import is_fully_async

FULLY_ASYNC = "slime.rollout.fully_async_rollout.generate_rollout_fully_async"
GENERATE = "agentrl.adapt"


@dataclass(frozen=True)
class Setup:
    flags: Flags
    program: str
    yaml_only: bool
    config: SlimeConfig | None
    env: type[Env] | None
    """None where no configuration names one, or it cannot be loaded."""

    @property
    def fully_async(self) -> bool:
        return is_fully_async(self.flags.text("--rollout-function-path"))

    @property
    def args(self) -> SimpleNamespace:
        """The part of slime's `args` that decides whether it can take several samples of one episode."""
        text = self.flags.text
        return SimpleNamespace(
            partial_rollout="--partial-rollout" in self.flags,
            group_rm="--group-rm" in self.flags,
            rollout_function_path=text("--rollout-function-path"),
            dynamic_sampling_filter_path=text("--dynamic-sampling-filter-path"),
            advantage_estimator=text("--advantage-estimator"),
            rewards_normalization="--disable-rewards-normalization" not in self.flags,
            custom_reward_post_process_path=text("--custom-reward-post-process-path"),
        )

    @property
    def scores(self) -> str | None:
        """Who gives agentrl's reward, in words, as far as can be seen before an episode."""
        if self.config is not None and self.config.reward:
            return f"reward {self.config.reward}"
        if self.env is None or self.env.score is Env.score:
            return None
        unscored = signature(self.env.score).return_annotation in (None, "None")
        return None if unscored else f"{self.env.__name__}.score"

    @property
    def has_tools(self) -> bool:
        return self.env is not None and (bool(self.env._agentrl_tools) or self.env.tools is not Env.tools)

    @property
    def model_folder(self) -> Path | None:
        """The model's folder if it is here."""
        path = (self.config.model if self.config else None) or self.flags.text("--hf-checkpoint")
        return Path(path) if path and Path(path).is_dir() else None

    @cached_property
    def model(self) -> Mapping[str, Any]:
        """The language model's part of config.json; empty where there is none."""
        file = (self.model_folder or Path()) / "config.json"
        if self.model_folder is None or not file.is_file():
            return {}
        try:
            config = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as exc:
            raise ConfigError(f"{file}: not readable as JSON: {exc}") from exc
        if not isinstance(config, dict):
            raise ConfigError(f"{file}: not a JSON object; it is no model's configuration")
        return {**config, **config.get("text_config", {})}

    @property
    def context(self) -> int | None:
        """Tokens that an episode may have, prompt included."""
        limit = self.config.limits.get("context") if self.config else None
        return limit or self.flags.whole("--rollout-max-context-len")

    @property
    def gpus(self) -> int | None:
        """GPUs that generate. slime gives a colocated run all of its trainer's."""
        if "--rollout-num-gpus" in self.flags:
            return self.flags.whole("--rollout-num-gpus")
        nodes, each = self.flags.whole("--actor-num-nodes"), self.flags.whole("--actor-num-gpus-per-node")
        return nodes * each if nodes and each and "--colocate" in self.flags else None

    @property
    def engines(self) -> int | None:
        per_engine = self.flags.whole("--rollout-num-gpus-per-engine")
        return max(1, self.gpus // per_engine) if self.gpus and per_engine else None


def read_config(flags: Flags) -> SlimeConfig:
    """agentrl's configuration, found as `adapt` finds it; slime's own keys in the file override flags.

    Raises ConfigError.
    """
    given = None
    if path := flags.text("--custom-config-path"):
        keys = _read_keys(Path(path))
        given = keys.pop("agentrl", None)
        flags.override(keys)
        if given is None and not os.environ.get(CONFIG_FILE_VARIABLE):
            raise ConfigError(
                f"{path} has no key 'agentrl' (it has: {', '.join(map(str, keys)) or 'nothing'}); "
                "write `agentrl: {env: my_env.py:MyEnv}`: every other key becomes an argument of slime"
            )
    return SlimeConfig.from_args(SimpleNamespace(agentrl=given))


def open_env(config: SlimeConfig, path: str) -> type[Env]:
    """Import the Env and let it check its configuration; nothing of it is started. Raises ConfigError."""
    with importing(path):
        return Envs(path, config.env_config).cls


@contextmanager
def importing(path: str) -> Iterator[None]:
    """The import boundary: whatever a module of the user's raises or ends with is one finding. Raises ConfigError."""
    try:
        yield
    except ConfigError:
        raise
    except (Exception, SystemExit) as exc:
        raise ConfigError(f"{path}: importing it raised {type(exc).__name__}: {' '.join(str(exc).split())}") from exc


def _read_keys(file: Path) -> dict[str, Any]:
    try:
        keys = yaml.safe_load(file.read_text(encoding="utf-8"))
    except FileNotFoundError as exc:
        raise ConfigError(f"--custom-config-path {file}: no such file; give its path from {Path.cwd()}") from exc
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as exc:
        raise ConfigError(f"--custom-config-path {file}: not readable as YAML: {' '.join(str(exc).split())}") from exc
    if not isinstance(keys, dict):
        raise ConfigError(f"--custom-config-path {file}: not a mapping; write `agentrl: {{env: my_env.py:MyEnv}}`")
    return keys
