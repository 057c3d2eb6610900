"""`agentrl check TASKS`: which coding tasks are broken, before a model meets them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from agentrl._util.findings import Finding, Level, Place, Report
from agentrl._util.loading import load_object
from agentrl._util.signals import run
from agentrl.errors import ConfigError

_PANEL = "Coding tasks"
Backend: TypeAlias = Annotated[
    str,
    typer.Option(
        help="What runs the sandboxes: auto, docker, bubblewrap, local (trusted code only).", rich_help_panel=_PANEL
    ),
]
Base: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="OLD=NEW",
        help="Use the image NEW where a task names OLD; may be repeated.",
        rich_help_panel=_PANEL,
    ),
]
Installed: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--installed",
        help="The images already have what Dockerfiles install: skip apt-get, pip and the like.",
        rich_help_panel=_PANEL,
    ),
]
Keep: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--keep",
        help="Keep the processes that a solution started, for tests that need a service.",
        rich_help_panel=_PANEL,
    ),
]
Concurrency: TypeAlias = Annotated[int, typer.Option(help="Tasks at a time.", min=1, rich_help_panel=_PANEL)]
Deadline: TypeAlias = Annotated[
    float, typer.Option(help="Seconds that each play may take, grading included.", min=1, rich_help_panel=_PANEL)
]

_CORE = "agentrl_envs.coding.validate"  # by dotted path, as agentrl imports no environment
_SHOWN = 400
"""The most characters of a failure's reason that are printed."""


def check_tasks(places: Sequence[str], options: Mapping[str, Any]) -> Report:
    """Play each task: doing nothing must score 0, and the task's own solution 1, each twice. Raises ConfigError."""
    chosen = {name: options[name] for name in ("installed", "keep", "concurrency", "deadline")}
    settings = load_object(f"{_CORE}:ValidationSettings")(options["backend"], bases(options["base"] or ()), **chosen)
    tasks = [task for place in places for task in load_object(f"{_CORE}:find_tasks")(Path(place), settings)]
    results = _played(tasks, settings)
    verdicts: dict[str, int] = load_object(f"{_CORE}:counts")(results)
    report = Report([_finding(result) for result in results if result.verdict != "good"])
    report.checked["tasks"] = (
        f"{len(results)}: {', '.join(f'{count} {verdict}' for verdict, count in verdicts.items())}"
    )
    report.figures = {"tasks": [asdict(result) for result in results], "verdicts": verdicts}
    return report


def _played(tasks: Sequence[Any], settings: Any) -> list[Any]:
    done = 0

    def tell(result: Any) -> None:
        nonlocal done
        done += 1
        typer.echo(f"{done}/{len(tasks)} {result.verdict}: {result.id} ({result.seconds:.0f} s)", err=True)

    results: list[Any] = run(load_object(f"{_CORE}:validate")(tasks, settings, on_finding=tell))
    return results


def _finding(result: Any) -> Finding:
    """The report's row of a task. A task without a solution of its own is no error, but UNCHECKED: whether the task can
    be solved is unknown."""
    level = Level.UNCHECKED if result.verdict == "no oracle" else Level.ERROR
    return Finding(level, result.reason[:_SHOWN], "", result.verdict, Place(result.id))


def bases(options: Sequence[str]) -> dict[str, str]:
    pairs = [option.partition("=") for option in options]
    if wrong := next(
        (option for option, (old, _, new) in zip(options, pairs, strict=True) if not old or not new), None
    ):
        raise ConfigError(f"--base {wrong}: write OLD=NEW, such as python:3.13-slim=my-python")
    return {old: new for old, _, new in pairs}
