"""The device of a run, and the engine if the configuration says `auto`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from agentrl.engine.sglang.training.flags import variables
from agentrl.engine.sglang.training.process import check_interpreter
from agentrl.engine.table import engine_keys
from agentrl.errors import ConfigError
from agentrl.models.device import device_of
from agentrl.models.hub import SEEDED
from agentrl.train.config import TrainConfig


def with_engine_chosen(config: TrainConfig, resumed: str | None, say: Callable[[str], None]) -> TrainConfig:
    """The configuration with an engine in place of `auto`. `say` gets a line on a GPU.

    A resumed run keeps the engine `resumed`. SGLang is chosen on a GPU if an interpreter has SGLang, and for a server
    that `engine_config.url` names. LocalEngine is chosen for `tiny`, for a run without episodes, and for a
    configuration with LocalEngine's settings. Settings that only SGLang has are then left out.
    """
    if config.engine != "auto":
        return config
    if resumed is not None:
        return _local(config) if resumed == "local" else config.with_engine(resumed)
    settings = config.engine_config
    if settings.get("url"):
        return config.with_engine("sglang")
    small = config.model in SEEDED or config.steps == 0
    if small or device_of(config.device) != "cuda" or settings.keys() - engine_keys("sglang", training=True):
        return _local(config)
    python = str(Path(settings["python"]).expanduser()) if settings.get("python") else sys.executable
    try:
        check_interpreter(python, variables(python, "cuda"))
    except ConfigError as exc:
        say(f"engine: local, which samples several times slower than SGLang: {exc}")
        return _local(config)
    say(f"engine: sglang, found by {python}; engine=local samples in this process instead, and repeats a run exactly")
    return config.with_engine("sglang")


def _local(config: TrainConfig) -> TrainConfig:
    foreign = engine_keys("sglang", training=True) - engine_keys("local", training=True)
    settings = {key: value for key, value in config.engine_config.items() if key not in foreign}
    return config.with_engine("local").model_copy(update={"engine_config": settings})
