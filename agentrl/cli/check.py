"""`agentrl check`: what an Env does wrong, before a model meets it."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import update_wrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentrl._interrupts import run
from agentrl.cli._errors import one_line_errors
from agentrl.cli.episodes import EpisodeConfig
from agentrl.cli.models import open_renderer
from agentrl.cli.options import EnvPath, EpisodeSettings, ModelName
from agentrl.cli.play import Player, load_player
from agentrl.env import EnvFactory
from agentrl.errors import ConfigError
from agentrl.loading import load_object

if TYPE_CHECKING:
    from agentrl.check import Report
    from agentrl.types import Task

FOUND = 1
"""Exit code where there is an error; 2 is a wrong command."""
_CLOSE_S = 10.0


def check(
    env: EnvPath,
    data: Annotated[
        Path | None, typer.Option(help="Tasks, one JSON object a line. Default: those that the Env makes.")
    ] = None,
    gold: Annotated[
        str | None,
        typer.Option(help="A player that knows the answers, file.py:function: it must get the most that there is."),
    ] = None,
    noop: Annotated[
        str | None,
        typer.Option(help="A player that does nothing of use; it must get nothing. Default: agentrl's own."),
    ] = None,
    model: ModelName = "tiny",
    limit: Annotated[int, typer.Option(help="Check with the first N tasks.", min=1)] = 3,
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
        report = _checked(env, data, gold, noop, model, limit, EpisodeConfig.parse(settings or ()))
        if out is not None:
            out.write_text(json.dumps(report.to_json(), indent=1) + "\n")
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
    config: EpisodeConfig,
) -> Report:
    from agentrl.check import Given
    from agentrl.check import check as check_env

    tasks = _tasks(EnvFactory(env, config.env_config), data, limit)
    renderer, _ = open_renderer(model)
    limits = replace(config.limits, close_s=min(config.limits.close_s, _CLOSE_S))
    given = Given(
        env=env,
        tasks=tasks,
        renderer=renderer,
        config=config.env_config,
        gold=_player(gold),
        noop=_player(noop),
        limits=limits,
    )
    return run(check_env(given))


def _player(path: str | None) -> Player | None:
    """A player by its path, whose source is still known."""
    return update_wrapper(load_player(path), load_object(path)) if path else None


def _tasks(envs: EnvFactory, data: Path | None, limit: int) -> list[Task]:
    from agentrl.rollout.own_tasks import makes_tasks, own_tasks
    from agentrl.rollout.tasks import load_tasks

    if data is not None:
        return load_tasks(data, split="eval", check=envs.check)[:limit]
    if not makes_tasks(envs.cls):
        name = envs.cls.__name__
        raise ConfigError(f"{name} makes no tasks of its own; name a file of tasks with --data, or write {name}.tasks")
    return own_tasks(envs, "eval", most=limit) or own_tasks(envs, "train", most=limit)


def _print(report: Report) -> None:
    for found in report.findings:
        typer.echo(str(found))
    for name, much in report.checked.items():
        typer.echo(f"checked      {name}: {much}", err=True)
    for name, why in report.skipped.items():
        typer.echo(f"not checked  {name}: {why}", err=True)
    warnings = len(report.findings) - len(report.errors)
    typer.echo(f"{len(report.errors)} errors, {warnings} warnings")
