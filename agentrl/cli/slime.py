"""`agentrl slime`: check a slime launch configuration, or write one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentrl.cli._errors import USAGE_ERROR, one_line_errors

if TYPE_CHECKING:
    from agentrl.slime.check import LaunchFinding

slime = typer.Typer(help="Check a slime launch configuration, or write one.", no_args_is_help=True)

_COLOURS = {"error": "red", "warning": "yellow", "unchecked": "magenta", "note": "blue"}


@slime.command()
def check(
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="-- COMMAND", help="-- python3 train.py --flag ... as the shell runs it, or the YAML file."
        ),
    ],
) -> None:
    """Show what would go wrong with a slime run, before any GPU is taken; exit 2 if there are errors.

    In a script, write `agentrl slime check --` in front of the command that starts train.py, with or without
    `ray job submit ...`: it is then checked, not run.
    """
    with one_line_errors():
        from agentrl.slime.check import check, read_argument, verdict

        findings = check(read_argument(command))
        for finding in findings:
            _print(finding)
        typer.echo(verdict(findings))
        if any(finding.level == "error" for finding in findings):
            raise typer.Exit(USAGE_ERROR)


def _print(finding: LaunchFinding) -> None:
    text = " ".join(finding.text.split())
    typer.echo(f"{typer.style(f'{finding.level:<9}', fg=_COLOURS[finding.level])} {text}")


@slime.command()
def init(
    env: Annotated[str, typer.Option(help="The environment: my_env.py:MyEnv or package.module:MyEnv.")],
    model: Annotated[
        str, typer.Option(help="A model of slime's scripts/models, by its published name or folder: Qwen/Qwen3-4B.")
    ],
    slime: Annotated[
        Path, typer.Option(envvar="SLIME", help="The root of slime's source. Its scripts know the models' layouts.")
    ],
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Where run.sh and agentrl.yaml go.")] = Path(),
    workers: Annotated[
        int, typer.Option(help="Processes that play episodes, with one CPU each; 0: slime's rollout manager.", min=0)
    ] = 0,
) -> None:
    """Write a launch script and agentrl.yaml. GPUs, nodes and paths are variables of the script."""
    with one_line_errors():
        from agentrl.env.factory import EnvFactory
        from agentrl.slime.init import model_file, next_steps, write

        EnvFactory(env)
        file, colon, name = env.rpartition(":")
        if file.endswith(".py"):  # slime runs elsewhere
            env = f"{Path(file).resolve()}{colon}{name}"
        script = model_file(model, slime)
        for path in write(env, script, slime, folder, workers):
            typer.echo(f"wrote {path}")
        for step in next_steps(folder, script, slime):
            typer.echo(f"next: {step}")


@slime.command("slices")
def slices_(
    file: Annotated[Path, typer.Argument(help="A JSONL or Parquet file.")],
    by: Annotated[str, typer.Option(metavar="KEY", help="The column that names the data sets, such as data_source.")],
) -> None:
    """Print words for --eval-prompt-data, one a line: a data set for each value of a column of one file."""
    with one_line_errors():
        from agentrl.slime.slices import slices

        for name, path in slices(file, by):
            typer.echo(f"{name}\n{path}")
