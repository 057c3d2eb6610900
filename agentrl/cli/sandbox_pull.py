"""`agentrl sandbox pull`: the images of a task set, on every host, before they are needed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from agentrl._util.loading import load_object
from agentrl._util.signals import run
from agentrl.cli._errors import one_line_errors
from agentrl.cli.check_tasks import bases

MISSING = 1
"""Exit code: some images are not there; 2 is a wrong command."""
_CODING, _PULLING = "agentrl_envs.coding", "agentrl_sandbox.docker.pulling"
_EVERY_S = 10.0
"""Seconds between two lines about a slow pull."""


def pull(
    tasks: Annotated[
        list[Path],
        typer.Argument(metavar="TASKS", help="Harbor tasks, function folders, folders of either, or JSONL files."),
    ],
    backend: Annotated[str, typer.Option(help="docker, or docker:HOST,HOST for several hosts.")] = "docker",
    base: Annotated[
        list[str] | None,
        typer.Option("--base", metavar="OLD=NEW", help="Use the image NEW where a task names OLD; may be repeated."),
    ] = None,
    image: Annotated[str, typer.Option(help="The image of tasks that name none.", show_default="agentrl's own")] = "",
    mirror: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="A registry that is asked first; the images keep their names.")
    ] = "",
    at_a_time: Annotated[int, typer.Option(help="Pulls at a time, on each host.", min=1)] = 4,
    per_hour: Annotated[
        float | None, typer.Option(help="Pulls begun in an hour, on each host.", min=1, show_default="no bound")
    ] = None,
    disk_gb: Annotated[
        float | None,
        typer.Option(help="What all images of a host may take, unpacked.", min=0, show_default="no bound"),
    ] = None,
) -> None:
    """Pull, build or import every image of a task set, on every host. What is there is not fetched again, so a pull
    that was killed resumes when it is started again.

    Prints each image with its outcome. Exit 1 if some failed, or have no room in the disk budget.
    """
    with one_line_errors():
        validation = load_object(f"{_CODING}.validate:ValidationSettings")(backend, bases(base or ()))
        task_list = [
            outcome for place in tasks for outcome in load_object(f"{_CODING}.validate:find_tasks")(place, validation)
        ]
        spec = load_object("agentrl_sandbox.spec:SandboxSpec")(image=image)
        images = load_object(f"{_CODING}.images:images_of")(task_list, spec)
        bounds = {"an_hour": per_hour, "disk_bytes": None if disk_gb is None else disk_gb * 1e9}
        set_bounds = {name: value for name, value in bounds.items() if value is not None}
        settings = load_object(f"{_PULLING}:PullSettings")(mirror, at_a_time, **set_bounds)
        outcomes = run(load_object(f"{_PULLING}:pull_images")(backend, images, settings, _Listener(len(images))))
        _report(images, outcomes)
        if any(outcome.outcome in ("failed", "no room") for outcome in outcomes):
            raise typer.Exit(MISSING)


class _Listener:
    """Prints the events of a pull, to stderr."""

    def __init__(self, images: int) -> None:
        self._images, self._done, self._printed = images, Counter[str](), dict[tuple[str, str], float]()

    def missing(self, host: str, missing: int, images: int) -> None:
        self._done[host] = images - missing
        typer.echo(f"{host}: {missing} of {images} images are missing", err=True)

    def done(self, outcome: Any) -> None:
        self._done[outcome.host] += 1
        why = f": {outcome.reason}" if outcome.reason else ""
        place = f"{self._done[outcome.host]}/{self._images} {outcome.host}"
        typer.echo(f"{place} {outcome.outcome} {outcome.image} ({outcome.seconds:.1f} s){why}", err=True)

    def progress(self, host: str, image: str, done: int, size: int) -> None:
        now = time.monotonic()
        if now - self._printed.setdefault((host, image), now) > _EVERY_S:
            self._printed[host, image] = now
            typer.echo(f"{host} {image}: {done / 1e6:.0f} of {size / 1e6:.0f} MB", err=True)


def _report(images: Sequence[str], outcomes: Sequence[Any]) -> None:
    for host in dict.fromkeys(result.host for result in outcomes):
        counts = Counter(result.outcome for result in outcomes if result.host == host)
        summary = ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common())
        typer.echo(f"{host}: {len(images)} images: {summary}")
    if not outcomes:
        typer.echo("these tasks need no images")
