"""The input of the rules: slime's arguments, agentrl's configuration, the Env and the model."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from agentrl._util.yaml_files import read_yaml
from agentrl.env.env import Env, is_agent, tools_of
from agentrl.errors import ConfigError
from agentrl.slime.check.arguments import Args
from agentrl.slime.check.command import TRAIN_PROGRAMS, TrainCommand
from agentrl.slime.config import CONFIG_FILE_VARIABLE, SlimeConfig
from agentrl.slime.host import plays_ahead

GENERATE = "agentrl.adapt"


_PROCESSORS = ("preprocessor_config.json", "processor_config.json")


@dataclass(frozen=True)
class Setup:
    args: Args
    command: TrainCommand
    config: SlimeConfig | None
    env: type[Env] | None
    """The Env class. None if no configuration names an Env, or if the Env cannot be loaded."""
    here: bool = False
    """Whether slime is installed on this machine. Then the run most likely happens on this machine."""

    @property
    def fully_async(self) -> bool:
        """Whether the flags name a rollout function of slime, miles or agentrl that plays ahead. The behaviour of other
        functions is unknown."""
        return bool(plays_ahead(self.args.rollout_function_path) or self.args.fully_async)

    @property
    def takes_lists(self) -> bool:
        """Whether the rollout takes an episode as a list of samples; see `host.takes_lists`."""
        is_miles = self.args.fully_async or (self.args.rollout_function_path or "").startswith("miles.")
        return not (self.fully_async and self.has_train_async) or bool(is_miles)

    @property
    def scores(self) -> str | None:
        """The name of the function that gives agentrl's reward. None if no such function is known before an episode."""
        if self.config is not None and self.config.reward:
            return f"reward {self.config.reward}"
        if self.env is None or self.env.score is Env.score:
            return None
        unscored = signature(self.env.score).return_annotation in (None, "None")
        return None if unscored else f"{self.env.__name__}.score"

    @property
    def agent(self) -> type[Env] | None:
        """The Env class of an agent, whose `run` calls the model itself. None for any other Env."""
        return self.env if self.env is not None and is_agent(self.env) else None

    @property
    def has_turns(self) -> bool:
        """Whether an episode may have several turns."""
        limit = self.config.limits.get("turns") if self.config else None
        return limit != 1 and self.env is not None and (self.has_tools or self.env.step is not Env.step)

    @property
    def has_tools(self) -> bool:
        env_has_tools = self.env is not None and (bool(tools_of(self.env)) or self.env.tools is not Env.tools)
        return env_has_tools or self.agent is not None

    @property
    def model_path(self) -> str | None:
        return (self.config.model if self.config else None) or self.args.hf_checkpoint

    @property
    def has_processor(self) -> bool:
        """Whether slime finds a processor in addition to the tokenizer, as in a vision-language model."""
        path = self.args.hf_checkpoint
        return path is not None and any((Path(path) / name).is_file() for name in _PROCESSORS)

    @property
    def model_folder(self) -> Path | None:
        """The model's folder, if the folder exists on this machine."""
        return Path(self.model_path) if self.model_path and Path(self.model_path).is_dir() else None

    @cached_property
    def model(self) -> Mapping[str, Any]:
        """The part of config.json about the language model. Empty without a config.json."""
        return read_model(self.model_folder) if self.model_folder else {}

    @property
    def experts(self) -> int | None:
        """The number of experts in a layer. None if it is neither in config.json nor in Megatron's flags."""
        names = ("num_experts", "n_routed_experts", "num_local_experts")
        if self.model:
            return next((self.model[name] for name in names if self.model.get(name)), 0)
        return (self.args.num_experts or 0) if self.args.num_layers else None

    @property
    def has_train_async(self) -> bool | None:
        """Whether slime has a second program for asynchronous training, as before 0.4. None if slime is not installed
        on this machine."""
        first, second = (any(Path(folder, name).is_file() for folder in self.command.path) for name in TRAIN_PROGRAMS)
        if self.command.program == TRAIN_PROGRAMS[1] or second:
            return True
        return False if first else None

    @property
    def context(self) -> int | None:
        """The maximum number of tokens of an episode, prompt included."""
        limit: int | None = self.config.limits.get("context") if self.config else None
        return limit or self.args.rollout_max_context_len

    @property
    def trainer_gpus(self) -> int | None:
        nodes, per_node = self.args.actor_num_nodes, self.args.actor_num_gpus_per_node
        return int(nodes * per_node) if nodes and per_node else None

    @property
    def gpus(self) -> int | None:
        """The number of GPUs for generation. A colocated run generates on all GPUs of the trainer."""
        if self.args.rollout_num_gpus is not None:
            return int(self.args.rollout_num_gpus)
        return self.trainer_gpus if self.args.colocate else None

    @property
    def engines(self) -> int | None:
        per_engine = self.args.rollout_num_gpus_per_engine
        return max(1, self.gpus // per_engine) if self.gpus and per_engine else None


def read_keys(path: str | None) -> dict[str, Any]:
    """The keys of the file of --custom-config-path. Raises ConfigError if the file cannot be read, or has no key
    `agentrl`."""
    if path is None:
        return {}
    keys = read_yaml(path, "--custom-config-path", "agentrl: {env: my_env.py:MyEnv}")
    if "agentrl" not in keys and not os.environ.get(CONFIG_FILE_VARIABLE):
        raise ConfigError(
            f"{path} has no key 'agentrl' (it has: {', '.join(map(str, keys)) or 'nothing'}); "
            "write `agentrl: {env: my_env.py:MyEnv}`: every other key becomes an argument of slime"
        )
    return keys


def read_config(keys: Mapping[str, Any]) -> SlimeConfig:
    """agentrl's configuration, found in the same places as by `adapt`. Raises ConfigError."""
    return SlimeConfig.from_args(SimpleNamespace(agentrl=keys.get("agentrl")))


def open_env(config: SlimeConfig, path: str) -> type[Env]:
    """Import the Env and validate its configuration, without starting the Env. Raises ConfigError."""
    return config.env_factory(path).cls


def read_model(folder: Path) -> dict[str, Any]:
    """The part of config.json about the language model. Empty without the file. Raises ConfigError."""
    file = folder / "config.json"
    if not file.is_file():
        return {}
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise ConfigError(f"{file}: not readable as JSON: {exc}") from exc
    if not isinstance(config, dict):
        raise ConfigError(f"{file}: not a JSON object, so it is not the configuration of a model")
    inner = config.get("text_config")
    return {**config, **(inner if isinstance(inner, dict) else {})}
