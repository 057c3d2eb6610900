"""What can be checked of a run before torch is imported, which takes seconds. A typo is answered at once."""

from __future__ import annotations

from pathlib import Path

from agentrl._util.config_errors import near_file
from agentrl.env.factory import EnvFactory
from agentrl.errors import ConfigError
from agentrl.models.hub import check_name
from agentrl.train.config import TrainConfig
from agentrl.train.run_folder import RunFolder, weights_of


def check_inputs(config: TrainConfig, *, resume: bool) -> None:
    """Raises ConfigError for a folder that is taken, an Env that cannot be made, and a file or model that is missing.

    `Trainer.setup` checks all of it again, and reads the files.
    """
    RunFolder(config.out).check(config, resume=resume)
    EnvFactory(config.env, config.env_config)
    config.reward_function()
    _check_file(config.data, "data file", "name one that exists, or leave --data out if the Env makes its own tasks")
    _check_file(config.eval_data, "data file", "name one that exists, or leave --eval-data out")
    if config.warm_start is not None and not resume:
        remedy = "record some with agentrl play --out"
        _check_file(config.warm_start.demonstrations, "file of demonstrations", remedy)
    if not resume:
        check_name(weights_of(config.model))


def _check_file(path: Path | None, what: str, remedy: str) -> None:
    if path is not None and not path.is_file():
        raise ConfigError(f"{path}: no such {what}{near_file(path, f'; {remedy}')}")
