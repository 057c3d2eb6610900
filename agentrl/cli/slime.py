"""`agentrl slime`: check a slime launch configuration, or write one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentrl.cli._errors import USAGE_ERROR, one_line_errors
from agentrl.errors import ConfigError

if TYPE_CHECKING:
    from agentrl.slime.check import Finding

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


def _print(finding: Finding) -> None:
    text = " ".join(finding.text.split())
    typer.echo(f"{typer.style(f'{finding.level:<9}', fg=_COLOURS[finding.level])} {text}")


@slime.command()
def init(
    model: Annotated[str, typer.Option(help="A model's name or folder, such as Qwen/Qwen3-4B.")],
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Where run.sh and agentrl.yaml go.")] = Path(),
    env: Annotated[
        str | None,
        typer.Option(help="The environment: my_env.py:MyEnv or package.module:MyEnv. A recipe brings its own."),
    ] = None,
    recipe: Annotated[str | None, typer.Option(help="Settings of a published training: search-r1.")] = None,
    estimator: Annotated[str, typer.Option(help="Of the recipe's settings: grpo or ppo.")] = "grpo",
    gpus: Annotated[int, typer.Option(help="GPUs of each node.")] = 8,
    nodes: Annotated[int, typer.Option(help="Nodes of the Ray cluster.")] = 1,
    fp8: Annotated[bool, typer.Option("--fp8", help="Generate with FP8 weights; training stays BF16.")] = False,
    fully_async: Annotated[
        bool, typer.Option("--fully-async", help="Generate while training, on half of the GPUs.")
    ] = False,
) -> None:
    """Write a launch script and agentrl.yaml for a model size and a number of GPUs."""
    with one_line_errors():
        from agentrl.env.env import EnvFactory
        from agentrl.slime.launch import launch_of, next_steps, recipe_of, write_launch

        settings = recipe_of(recipe, estimator)
        if settings is None and env is None:
            raise ConfigError("no environment: add --env my_env.py:MyEnv, or --recipe search-r1")
        env = env or (settings.env if settings else "")
        EnvFactory(env)
        file, colon, name = env.rpartition(":")
        if file.endswith(".py"):  # slime runs elsewhere
            env = f"{Path(file).resolve()}{colon}{name}"
        launch = launch_of(
            model, env, gpus=gpus, nodes=nodes, fp8=fp8, fully_async=fully_async, recipe=settings, estimator=estimator
        )
        for path in write_launch(launch, folder):
            typer.echo(f"wrote {path}")
        for step in next_steps(launch, folder):
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
