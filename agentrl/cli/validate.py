"""`agentrl validate`: which coding tasks are broken, before a model meets them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from agentrl._util.files import write_atomically
from agentrl._util.loading import load_object
from agentrl._util.signals import run
from agentrl.cli._errors import one_line_errors
from agentrl.errors import ConfigError

BROKEN = 1
"""Exit code; 2 is a wrong command."""
_CORE = "agentrl_envs.coding.validate"


def validate(
    tasks: Annotated[
        list[Path],
        typer.Argument(metavar="TASKS", help="Harbor tasks, function folders, folders of either, or JSONL files."),
    ],
    backend: Annotated[
        str, typer.Option(help="What runs the sandboxes: auto, docker, bubblewrap, local (trusted code only).")
    ] = "auto",
    base: Annotated[
        list[str] | None,
        typer.Option("--base", metavar="OLD=NEW", help="Use the image NEW where a task names OLD; may be repeated."),
    ] = None,
    installed: Annotated[
        bool,
        typer.Option(
            "--installed", help="The images already have what Dockerfiles install: skip apt-get, pip and the like."
        ),
    ] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the processes that a solution started, for tests that need a service.")
    ] = False,
    concurrency: Annotated[int, typer.Option(help="Tasks at a time.", min=1)] = 2,
    deadline: Annotated[float, typer.Option(help="Seconds that each play may take, grading included.", min=1)] = 600.0,
    out: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write all findings here.")] = None,
) -> None:
    """Validate coding tasks without a model: doing nothing must score 0, and the task's own solution 1, each twice.

    Prints a table of the tasks where that is not true, with the reason. Exit 1 if there are any.
    """
    with one_line_errors():
        if out is not None and (out.is_dir() or not out.resolve().parent.is_dir()):
            raise ConfigError(f"--json {out}: name a file in a folder that exists")
        options = {"installed": installed, "keep": keep, "concurrency": concurrency, "deadline": deadline}
        settings = load_object(f"{_CORE}:ValidationSettings")(backend, bases(base or ()), **options)
        findings = _run(
            [task for place in tasks for task in load_object(f"{_CORE}:find_tasks")(place, settings)], settings
        )
        verdicts = load_object(f"{_CORE}:counts")(findings)
        if out is not None:
            rows = [dataclasses.asdict(finding) for finding in findings]
            report = {"tasks": len(rows), "verdicts": verdicts, "findings": rows}
            write_atomically(out, json.dumps(report, indent=1) + "\n")
        _report(findings, verdicts)
        if set(verdicts) - {"good"}:
            raise typer.Exit(BROKEN)


def _run(tasks: Sequence[Any], settings: Any) -> list[Any]:
    done = 0

    def tell(finding: Any) -> None:
        nonlocal done
        done += 1
        typer.echo(f"{done}/{len(tasks)} {finding.verdict}: {finding.id} ({finding.seconds:.0f} s)", err=True)

    findings: list[Any] = run(load_object(f"{_CORE}:validate")(tasks, settings, on_finding=tell))
    return findings


def bases(options: Sequence[str]) -> dict[str, str]:
    pairs = [option.partition("=") for option in options]
    if wrong := next(
        (option for option, (old, _, new) in zip(options, pairs, strict=True) if not old or not new), None
    ):
        raise ConfigError(f"--base {wrong}: write OLD=NEW, such as python:3.13-slim=my-python")
    return {old: new for old, _, new in pairs}


def _report(findings: Sequence[Any], verdicts: dict[str, int]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    broken = [finding for finding in findings if finding.verdict != "good"]
    if broken:
        table = Table("task", "verdict", "why")
        for finding in broken:
            table.add_row(finding.id, finding.verdict, finding.reason[:400])
        console.print(table, markup=False)
    summary = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items())
    console.print(f"{len(findings)} tasks: {summary}", highlight=False, markup=False)
