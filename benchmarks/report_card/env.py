"""An environment of the report card as an Env, for `agentrl check`."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from itertools import islice
from typing import Any, Literal

from agentrl import Task
from agentrl_envs.adapters.games import Game, GameConfig, TextGame
from agentrl_envs.adapters.suites import seeded
from benchmarks.report_card.environment import Environment, suite_environments


class CardConfig(GameConfig):
    suite: str
    """The suite of the environment."""


class CardEnv(TextGame):
    """An environment of a suite. A task's label has the right turns for its seed."""

    config: CardConfig

    @classmethod
    def open(cls, config: CardConfig, name: str) -> Game:
        return _environment(config, name).open()

    @classmethod
    def tasks(cls, config: CardConfig, split: Literal["train", "eval"]) -> Iterable[Task]:
        name = str(config.name)
        environment = _environment(config, name)
        for task in islice(seeded([name], split), 40):
            texts = environment.gold(task.seed % (1 << 32)) if environment.gold else ()
            label = (texts[0] if len(texts) == 1 else list(texts)) if texts else None
            yield Task(prompt=name, metadata={"name": name}, seed=task.seed, label=label)


def gold(task: Task) -> Generator[Any, str, None]:
    """The player that takes the right turns."""
    yield from [task.label] if isinstance(task.label, str) else task.label or ()


def _environment(config: CardConfig, name: str) -> Environment:
    key = (config.suite, name)
    if key not in _OPENED:
        _OPENED[key] = next(each for each in suite_environments(config.suite) if each.name == name)
    return _OPENED[key]


_OPENED: dict[tuple[str, str], Environment] = {}
