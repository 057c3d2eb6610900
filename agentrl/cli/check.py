"""`agentrl check`: what an Env does wrong, before a model meets it."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from functools import update_wrapper
from itertools import chain, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentrl._util.files import write_atomically
from agentrl._util.loading import load_object
from agentrl._util.signals import run
from agentrl.cli._errors import one_line_errors
from agentrl.cli.episodes import PlayConfig
from agentrl.cli.models import open_renderer
from agentrl.cli.options import EnvPath, EpisodeSettings, ModelName
from agentrl.cli.play import Player, load_player
from agentrl.env.factory import EnvFactory
from agentrl.errors import ConfigError

if TYPE_CHECKING:
    from agentrl.check import Report
    from agentrl.types import Task

FOUND = 1
"""Exit code where there is an error; 2 is a wrong command."""
_CLOSE_S = 10.0
_EVERY_S = 10.0
"""How often the running check is shown."""


def check(
    env: EnvPath,
    data: Annotated[
        Path | None, typer.Option(help="Tasks, one JSON object a line. Default: those that the Env makes.")
    ] = None,
    gold: Annotated[
        str | None,
        typer.Option(help="A player that knows the answers, file.py:function: it must get the highest reward."),
    ] = None,
    noop: Annotated[
        str | None,
        typer.Option(help="A player that does nothing useful: it should get no reward. Default: agentrl's."),
    ] = None,
    model: ModelName = "tiny",
    limit: Annotated[
        int, typer.Option(help="Check with N tasks. Tasks that the Env makes alternate between train and eval.", min=1)
    ] = 3,
    seconds: Annotated[
        float, typer.Option(help="Seconds that cancelling one script may take; other limits scale with it.", min=1)
    ] = 20.0,
    settings: EpisodeSettings = None,
    out: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write all findings here.")] = None,
) -> None:
    """Check an environment without a model: its lifecycle, cancellation, determinism, tools, scores and leaks.

    Plays episodes with players and by chance, and prints what is wrong, each with the line to look at. Exit 1 if there
    is an error. The model gives its chat template.
    """
    with one_line_errors():
        if out is not None and (out.is_dir() or not out.resolve().parent.is_dir()):
            raise ConfigError(f"--json {out}: name a file in a folder that exists")
        report = _checked(env, data, gold, noop, model, limit, seconds, PlayConfig.parse(settings or ()))
        if out is not None:
            write_atomically(out, json.dumps(report.to_json(), indent=1) + "\n")
        _print(report)
        if report.errors:
            raise typer.Exit(FOUND)


def _checked(
    env: str,
    data: Path | None,
    gold: str | None,
    noop: str | None,
    model: str,
    limit: int,
    seconds: float,
    config: PlayConfig,
) -> Report:
    from agentrl.check import CheckInputs
    from agentrl.check import check as check_env

    tasks, of = _tasks(EnvFactory(env, config.env_config), data)
    knows, does_nothing = _player(gold), _player(noop)
    renderer, _ = open_renderer(model)
    limits = replace(config.limits, close_s=min(config.limits.close_s, _CLOSE_S))
    inputs = CheckInputs(
        env=env,
        tasks=tasks[:limit],
        others=tasks[limit:],
        renderer=renderer,
        config=config.env_config,
        gold=knows,
        noop=does_nothing,
        limits=limits,
        seconds=seconds,
        of=of,
    )
    with CheckProgress() as progress:
        return run(check_env(replace(inputs, begins=progress.begins)))


class CheckProgress:
    """Within `with`, shows from time to time which check runs. Uses a thread, as an Env may block the loop."""

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
    """The player at a path, with a source that can be inspected."""
    return update_wrapper(load_player(path), load_object(path)) if path else None


def _tasks(envs: EnvFactory, data: Path | None) -> tuple[list[Task], str]:
    """All tasks, the tasks to check with first, and the number of tasks in words."""
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


def _print(report: Report) -> None:
    for finding in report.findings:
        typer.echo(str(finding))
    for name, much in report.checked.items():
        typer.echo(f"checked      {name}: {much}", err=True)
    for name, why in report.skipped.items():
        typer.echo(f"not checked  {name}: {why}", err=True)
    warnings = len(report.findings) - len(report.errors)
    typer.echo(f"{len(report.errors)} errors, {warnings} warnings")
