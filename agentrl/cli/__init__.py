"""The `agentrl` command. A subcommand is imported when it is called, and imports most modules when it runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from agentrl import __version__
from agentrl._util.garbage import claim_process
from agentrl._util.torch_threads import wait_passively
from agentrl.cli._codes import INTERRUPTED, USAGE_ERROR
from agentrl.cli._installed import CommandGroup

_UsageError: Any = typer.BadParameter.__mro__[1]
"""click's UsageError, a base class of typer's BadParameter. Newer versions of typer bundle click."""

app = typer.Typer(
    name="agentrl",
    cls=CommandGroup,
    help="Train LLM agents by reinforcement learning in multi-turn environments.",
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"agentrl {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    from agentrl._util.loading import search_current_folder
    from agentrl.cli._warnings import name_unawaited_lines

    name_unawaited_lines()
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
    elif context.invoked_subcommand not in ("check", "slime"):  # slime runs elsewhere; check asks for itself
        search_current_folder()


def main() -> None:
    """Entry point of the `agentrl` command."""
    wait_passively()  # a contended evaluation took 38 s, and takes 1.3 s
    claim_process()
    sys.exit(run_line(sys.argv[1:]))


def run_line(words: Sequence[str]) -> int:
    """Run a command line, and return the exit code. A usage error is reported in a single line on stderr."""
    try:
        return int(app(list(words), prog_name="agentrl", standalone_mode=False) or 0)
    except _UsageError as exc:
        if exc.format_message():
            path = exc.ctx.command_path if exc.ctx is not None else app.info.name
            message = " ".join(exc.format_message().replace("Value error, ", "").split())
            typer.echo(f"error: {message} ({path} --help lists what there is)", err=True)
        else:
            exc.show()  # a group without a command prints its help
        return USAGE_ERROR
    except typer.Abort:  # Ctrl-C before a command had begun
        typer.echo("interrupted", err=True)
        return INTERRUPTED
