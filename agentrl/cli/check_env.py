"""`agentrl check ENV`: what an Env does wrong, before a model meets it."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import update_wrapper
from itertools import chain, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from agentrl._util.loading import load_object
from agentrl._util.signals import run
from agentrl.cli.episodes import PlayConfig
from agentrl.cli.models import open_renderer
from agentrl.cli.play import Player, load_player
from agentrl.env.factory import EnvFactory
from agentrl.errors import ConfigError

if TYPE_CHECKING:
    from agentrl._util.findings import Report
    from agentrl.types import Task

_PANEL = "An environment"
Data: TypeAlias = Annotated[
    Path | None,
    typer.Option(help="Tasks, one JSON object a line. Default: those that the Env makes.", rich_help_panel=_PANEL),
]
Gold: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="A player that knows the answers, file.py:function: it must get the highest reward.",
        rich_help_panel=_PANEL,
    ),
]
Noop: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="A player that does nothing useful: it should get no reward. Default: agentrl's.", rich_help_panel=_PANEL
    ),
]
Limit: TypeAlias = Annotated[
    int,
    typer.Option(
        help="Check with N tasks. Tasks that the Env makes alternate between train and eval.",
        min=1,
        rich_help_panel=_PANEL,
    ),
]
Seconds: TypeAlias = Annotated[
    float,
    typer.Option(
        help="Seconds that cancelling one script may take; other limits scale with it.", min=1, rich_help_panel=_PANEL
    ),
]
Settings: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="env_config.KEY=VALUE or limits.KEY=VALUE; may be repeated.",
        rich_help_panel=_PANEL,
    ),
]

_CLOSE_S = 10.0
_EVERY_S = 10.0
"""Seconds between reports of which check runs."""


def check_env(words: Sequence[str], options: Mapping[str, Any]) -> Report:
    """Play the environment with the scripted players of the options and with random actions. Raises ConfigError."""
    from agentrl.check import CheckInputs, check

    [env], config = words, PlayConfig.parse(options["settings"] or ())
    tasks, of = _tasks(EnvFactory(env, config.env_config), options["data"])
    gold, noop = _player(options["gold"]), _player(options["noop"])
    renderer, _ = open_renderer(options["model"] or "tiny")
    with CheckProgress() as progress:
        inputs = CheckInputs(
            env=env,
            tasks=tasks[: options["limit"]],
            others=tasks[options["limit"] :],
            renderer=renderer,
            config=config.env_config,
            gold=gold,
            noop=noop,
            limits=replace(config.limits, close_s=min(config.limits.close_s, _CLOSE_S)),
            seconds=options["seconds"],
            of=of,
            begins=progress.begins,
        )
        return run(check(inputs))


class CheckProgress:
    """Within `with`, shows from time to time which check runs. A thread does so, as an Env may block the event loop."""

    def __init__(self) -> None:
        self._name, self._began = "the Env", time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._tell, name="agentrl-check-progress", daemon=True)

    def __enter__(self) -> CheckProgress:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()

    def begins(self, name: str) -> None:
        self._name = name

    def _tell(self) -> None:
        while not self._over.wait(_EVERY_S):
            typer.echo(f"checking     {self._name} ({time.monotonic() - self._began:.0f} s so far)", err=True)


def _player(path: str | None) -> Player | None:
    """The scripted player at a path, with the attributes of the user's function, so that `inspect` reads its
    source code."""
    return update_wrapper(load_player(path), load_object(path)) if path else None


def _tasks(envs: EnvFactory, data: Path | None) -> tuple[list[Task], str]:
    """All tasks, and the number of tasks in words. Training tasks and held-out tasks of an Env alternate."""
    from agentrl.rollout.data.own_tasks import makes_tasks, own_tasks
    from agentrl.rollout.data.tasks import load_tasks

    if data is not None:
        read = load_tasks(data, split="eval", check=envs.check)
        return read, f"{len(read)} tasks"
    if not makes_tasks(envs.cls):
        name = envs.cls.__name__
        raise ConfigError(f"{name} makes no tasks; name a file of tasks with --data, or write {name}.tasks")
    held_out, train = own_tasks(envs, "eval"), own_tasks(envs, "train")
    by_turns = chain.from_iterable(zip_longest(train, held_out))
    chosen: dict[str, Task] = {}
    for task in by_turns:
        if task is not None:
            chosen.setdefault(task.id, task)
    of = f"{_count(held_out, 'eval')} held-out and {_count(train, 'train')} training tasks"
    return list(chosen.values()), of


def _count(tasks: list[Task], split: str) -> str:
    """The number of tasks, in words. A generator may be endless, so not all of its tasks are counted."""
    from agentrl.rollout.data.own_tasks import DEFAULT_EPISODES

    return f"{len(tasks)}{' or more' if len(tasks) == DEFAULT_EPISODES[split] else ''}"
