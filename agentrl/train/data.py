"""The tasks of a run, from the configuration."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from agentrl.env.factory import EnvFactory
from agentrl.episode.scoring import check_of
from agentrl.errors import ConfigError
from agentrl.render.base import Renderer
from agentrl.rollout.data.data_files import data_bytes
from agentrl.rollout.data.hub import is_hub
from agentrl.rollout.data.source import TaskSource
from agentrl.rollout.data.stream import Mixture, PromptLimit, TaskStream
from agentrl.rollout.data.tasks import Columns, TaskFile, held_out_tasks, tasks_of
from agentrl.train.config import TrainConfig
from agentrl.types import Task

log = logging.getLogger("agentrl")

IN_MEMORY = 64 << 20
"""Bytes of a data file up to which all of its tasks are read and checked at once. A larger file stays on disk."""

_LOOKED_AT = 1000
"""The number of tasks of a data file that are checked before a run."""


def training_tasks(config: TrainConfig, envs: EnvFactory) -> TaskSource:
    """The source of a run's tasks. Raises ConfigError."""
    check = check_of(config.reward_function())
    weighed = list(config.data.items()) if isinstance(config.data, dict) else [(config.data, 1.0)]
    streams, sizes = list[TaskStream](), list[int]()
    for path, _ in weighed:
        tasks = _tasks(config, envs, path, check)
        _warn_of_missing(envs, tasks)
        sizes.append(len(tasks))
        streams.append(TaskStream(tasks, config.seed))
    return streams[0] if len(streams) == 1 else Mixture(streams, sizes, [weight for _, weight in weighed])


def evaluation_tasks(config: TrainConfig, envs: EnvFactory) -> list[Task]:
    """The held-out tasks of a run, possibly none. Raises ConfigError."""
    makes_tasks, check = config.data is None, check_of(config.reward_function())
    columns = _columns(config)
    return held_out_tasks(envs, config.eval_data, config.eval_tasks, from_env=makes_tasks, check=check, columns=columns)


def limit_prompts(config: TrainConfig, source: TaskSource, renderer: Renderer, warn: Callable[[str], None]) -> None:
    """Leave out tasks with a longer prompt than `max_prompt_tokens`."""
    if config.max_prompt_tokens is not None:
        source.limit_prompts(PromptLimit(config.max_prompt_tokens, lambda task: prompt_tokens(task, renderer), warn))


def prompt_tokens(task: Task, renderer: Renderer) -> int:
    """The number of tokens of a task's prompt and tools in the model's template. An Env may add tokens in `reset`."""
    return len((renderer.bind(task.tools) if task.tools else renderer).prompt(task.prompt).tokens)


def _tasks(
    config: TrainConfig, envs: EnvFactory, path: Path | None, check: Callable[[Task], None] | None
) -> list[Task] | TaskFile:
    """The tasks of a file or of the Env. `check` is the reward function's check of a task.

    In a file that stays on disk, the first tasks are checked at once, and a failed check raises ConfigError. The other
    tasks are checked when drawn, and a failed `check` logs a warning.
    """
    columns = _columns(config)
    if path is None or not (path.is_file() or is_hub(path)) or data_bytes(path) <= IN_MEMORY:
        return tasks_of(envs, path, "train", episodes=config.episodes, check=check, columns=columns)
    checks = _Checks(envs.check, check)
    tasks = TaskFile(path, split="train", check=checks, columns=columns)
    for _ in zip(range(_LOOKED_AT), tasks, strict=False):
        pass
    checks.only_warn = True
    return tasks


@dataclass(slots=True)
class _Checks:
    """The Env's check of a task, then the reward function's check."""

    of_env: Callable[[Task], None]
    of_reward: Callable[[Task], None] | None
    only_warn: bool = False
    """Whether a task that the reward function refuses only leads to a log line."""

    def __call__(self, task: Task) -> None:
        self.of_env(task)
        try:
            if self.of_reward is not None:
                self.of_reward(task)
        except ConfigError as exc:
            if not self.only_warn:
                raise
            log.warning("task %s: %s", task.id, exc)


def _warn_of_missing(envs: EnvFactory, tasks: list[Task] | TaskFile) -> None:
    """Log the requirements of the first tasks that the Env lacks. Reading all tasks of a large file would take long."""
    first = (tasks[number] for number in range(min(len(tasks), _LOOKED_AT)))
    for line in envs.cls.missing_for(envs.config, first):
        log.warning("%s", line)


def _columns(config: TrainConfig) -> Columns | None:
    return Columns(**config.columns.model_dump()) if config.columns is not None else None
