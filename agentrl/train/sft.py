"""Supervised training alone: a run that learns from recorded chat or episodes, and plays no episodes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from agentrl.env.env import Env
from agentrl.errors import ConfigError
from agentrl.rollout.data.data_files import count_rows
from agentrl.train.config import TrainConfig, WarmStartConfig
from agentrl.types import Action, StepResult, Task

_EPOCHS = 3.0


class NoEnv(Env):
    """The Env of a run that plays no episodes."""

    @classmethod
    def tasks(cls, config: Any, split: Literal["train", "eval"], /) -> Iterable[Task]:
        return [Task(prompt=".")] if split == "train" else []

    def step(self, action: Action, /) -> StepResult:
        return StepResult(done=True)


def sft_config(demonstrations: Path, epochs: float | None, values: Mapping[str, Any]) -> TrainConfig:
    """The configuration of a run that has only a warm start. An epoch has as many demonstrations as the file has rows.

    The default of `epochs` is 3. Raises ConfigError, also if both `epochs` and `warm_start.steps` are set.
    """
    rows = count_rows(demonstrations, 'give chat as JSONL: {"messages": [...]}')
    taught = values.get("warm_start") or {}
    if not isinstance(taught, Mapping):
        raise ConfigError(f"warm_start={taught}: name a key of it, as in --set warm_start.batch_size=8")
    if epochs is not None and "steps" in taught:
        raise ConfigError("--epochs and warm_start.steps both set how long to learn; give one of them")
    epochs = _EPOCHS if epochs is None else epochs
    warm_start: dict[str, Any] = {**taught, "demonstrations": demonstrations}
    batch = warm_start.get("batch_size", WarmStartConfig.model_fields["batch_size"].default)
    if isinstance(batch, int) and batch > 0:
        warm_start = {"steps": max(1, math.ceil(epochs * rows / batch)), **warm_start}
    env = f"{NoEnv.__module__}:{NoEnv.__qualname__}"
    return TrainConfig.make(**{"env": env, **values, "steps": 0, "warm_start": warm_start})
