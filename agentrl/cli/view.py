"""`agentrl view`: runs and files in a browser."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentrl.cli._errors import one_line_errors
from agentrl.errors import ConfigError

if TYPE_CHECKING:
    from agentrl.view.sources import Source


def first_page(sources: Sequence[Source]) -> str:
    """The end of the address of the first page: for several runs their comparison."""
    return "#/0/compare" if sum(source.kind == "run" for source in sources) > 1 else ""


def view(
    inputs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN_OR_FILE...",
            help="Runs' folders, or files: trajectories, slime's dumps, verifiers' traces, ATIF, chat.",
        ),
    ],
    model: Annotated[
        str | None, typer.Option(help="The model whose tokenizer reads the tokens. Default: the run's.")
    ] = None,
    port: Annotated[int, typer.Option(help="0 takes a free one.", min=0, max=65535)] = 0,
    host: Annotated[
        str, typer.Option(help="The address to listen on; another than loopback needs --expose.")
    ] = "127.0.0.1",
    expose: Annotated[bool, typer.Option(help="Let other machines read everything, without encryption.")] = False,
) -> None:
    """Show runs and files in a browser: every token, who wrote it, whether it is trained, and why not.

    agentrl view runs/demo

    The page is read-only and follows a run that goes on. From another machine: ssh -L PORT:127.0.0.1:PORT
    """
    with one_line_errors(lambda: "the server has ended"):
        from agentrl.view.server import ViewServer, run_view
        from agentrl.view.sources import open_source

        if host not in ("127.0.0.1", "localhost", "::1") and not expose:
            raise ConfigError(
                f"--host {host}: others could read everything; use ssh -L PORT:127.0.0.1:PORT, or add --expose"
            )
        sources = [open_source(path) for path in inputs]
        server = ViewServer(sources, model=model, host=host)
        page = first_page(sources)
        run_view(server, port, lambda link: typer.echo(f"{link}{page}\nthis link lets in; Ctrl-C ends"))
