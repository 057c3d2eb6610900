"""The `agentrl` command. A subcommand imports modules when it runs, so that `--help` is quick."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from agentrl import __version__
from agentrl._util.garbage import claim_process
from agentrl._util.loading import search_current_folder
from agentrl._util.torch_threads import wait_passively
from agentrl.cli._errors import INTERRUPTED, USAGE_ERROR
from agentrl.cli._installed import installed_commands
from agentrl.cli._warnings import name_unawaited_lines
from agentrl.cli.data import data
from agentrl.cli.envs import envs
from agentrl.cli.evaluate import evaluate
from agentrl.cli.merge import merge
from agentrl.cli.play import play
from agentrl.cli.serve import serve
from agentrl.cli.slime import slime

_CORE: dict[str, Any] = {
    "data": data,
    "envs": envs,
    "eval": evaluate,
    "merge": merge,
    "play": play,
    "serve": serve,
    "slime": slime,
}
"""Name -> subcommand that the core has itself. All other subcommands are entry points of packages, so that the core
works without these packages."""

_UsageError: Any = typer.BadParameter.__mro__[1]
"""click's UsageError, a base class of typer's BadParameter. Newer versions of typer bundle click."""

app = typer.Typer(
    name="agentrl",
    help="Train LLM agents by reinforcement learning in multi-turn environments.",
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _add(name: str, command: Any) -> None:
    """Add a subcommand: a function, or a Typer with subcommands of its own. `slime.rehearse` is added to the core's
    group `slime`."""
    group, dot, inner = name.rpartition(".")
    if isinstance(command, typer.Typer):
        app.add_typer(command, name=name)
    elif dot and isinstance(_CORE.get(group), typer.Typer):
        _CORE[group].command(inner)(command)
    else:
        app.command(name)(command)


for _name, _command in sorted({**installed_commands(), **_CORE}.items()):
    _add(_name, _command)


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
