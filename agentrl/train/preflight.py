"""The checks of a run before torch is imported. The import takes seconds, and a mistake in the settings is reported at
once."""

from __future__ import annotations

from agentrl._util.config_errors import check_file
from agentrl.engine.table import check_engine
from agentrl.env.factory import EnvFactory
from agentrl.errors import ConfigError
from agentrl.models.hub import check_name
from agentrl.rollout.data.data_files import check_data
from agentrl.train.config import TrainConfig
from agentrl.train.run_folder import RunFolder, weights_of


def check_inputs(config: TrainConfig, *, resume: bool) -> None:
    """Raises ConfigError for a run folder that is in use, an Env that cannot be created, and a missing file or model.

    `Trainer.setup` repeats these checks, and reads the files.
    """
    RunFolder(config.out).check(config, resume=resume)
    EnvFactory(config.env, config.env_config)
    config.reward_function()
    for path in config.data if isinstance(config.data, dict) else filter(None, [config.data]):
        check_data(path, "name one that exists, or leave --data out if the Env makes its own tasks")
    if config.eval_data is not None:
        check_data(config.eval_data, "name one that exists, or leave --eval-data out")
    if config.warm_start is not None and not resume:
        remedy = "record some with agentrl play --out"
        check_file(config.warm_start.demonstrations, remedy, "file of demonstrations")
    if config.engine != "auto":
        check_engine(config.engine)
    if not resume:
        check_name(weights_of(config.model))
    if config.teacher is not None and not config.teacher.is_served:
        try:
            check_name(weights_of(config.teacher.model))
        except ConfigError as exc:
            raise ConfigError(f"teacher: {exc}") from exc
