"""`agentrl sandbox`: the existing sandboxes, and the removal of abandoned ones."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any

import typer

from agentrl._util.loading import load_object
from agentrl.cli._codes import USAGE_ERROR
from agentrl.cli._errors import one_line_errors
from agentrl.errors import SandboxError

sandbox = typer.Typer(help="Show which sandboxes exist; remove leftover ones.", no_args_is_help=True)

_SURVEY = "agentrl_sandbox.survey"  # by dotted path, as agentrl imports no back end
_Backend = Annotated[
    str, typer.Option(help="docker, bubblewrap, local or package.module:Class.", show_default="each that works")
]


@sandbox.command("ls")
def list_(backend: _Backend = "") -> None:
    """List the sandboxes of all runs, including abandoned sandboxes, and leftover images and cgroups."""
    with one_line_errors():
        boxes = _asked("found", backend)
        if boxes:
            typer.echo(f"{'SANDBOX':<27} {'RUN':<20} {'OWNER':<6} {'TIME LEFT':>9}  IMAGE")
        for box in boxes:
            remaining = f"{max(0.0, box.deadline - time.time()):.0f} s"
            owner = "gone" if box.gone else "lives"
            place = f"  on {box.host}" if box.host else ""
            typer.echo(f"{box.sandbox_id:<27} {box.run:<20} {owner:<6} {remaining:>9}  {box.image}{place}")
        if not boxes:
            typer.echo("no sandboxes")
        if others := _asked("left", backend):
            typer.echo("left over; `agentrl sandbox gc` removes them:")
        for leftover in others:
            typer.echo(f"{leftover.kind:<8} {leftover.name}  ({leftover.note})")


@sandbox.command()
def gc(backend: _Backend = "") -> None:
    """Remove the sandboxes whose run has ended or whose time is over, as each new run does; also other leftovers:
    images that agentrl made, unless a run has sandboxes on the engine, and empty cgroups."""
    with one_line_errors():
        removed = [f"{_asked('collect', backend)} sandboxes"]
        cleared = _asked("tidy", backend)
        for kind, many in (("image", "images"), ("cgroup", "cgroups")):
            if count := sum(leftover.kind == kind for leftover in cleared):
                removed.append(f"{count} {many}")
        typer.echo(f"removed {', '.join(removed)}")


def _asked(function: str, backend: str) -> Any:
    try:
        return asyncio.run(load_object(f"{_SURVEY}:{function}")(backend))
    except SandboxError as exc:
        typer.echo(f"error: {' '.join(str(exc).split())}", err=True)
        raise typer.Exit(USAGE_ERROR) from exc
