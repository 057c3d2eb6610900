"""`agentrl slime`: check a slime launch configuration, or write one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentrl.cli._errors import USAGE_ERROR, one_line_errors

if TYPE_CHECKING:
    from agentrl.slime.check import Finding

slime = typer.Typer(help="Check a slime launch configuration, or write one.", no_args_is_help=True)

_COLOURS = {"error": "red", "warning": "yellow", "note": "blue"}


@slime.command()
def check(
    config: Annotated[
        list[str],
        typer.Argument(
            metavar="CONFIG", help="A launch script, a file of flags, the YAML file, or -- and the flags themselves."
        ),
    ],
) -> None:
    """Say what would go wrong with a slime run, before any GPU is taken; exit 2 if there are errors.

    A script is read, never run: variables come from the environment, relative paths are taken from this folder.
    """
    with one_line_errors():
        from agentrl.slime.check import check, read_file, read_words, verdict

        is_file = len(config) == 1 and not config[0].startswith("--")
        launch = read_file(Path(config[0])) if is_file else read_words(config)
        findings = check(launch)
        for finding in findings:
            _print(finding)
        typer.echo(verdict(findings))
        if any(finding.level == "error" for finding in findings):
            raise typer.Exit(USAGE_ERROR)


def _print(finding: Finding) -> None:
    text = " ".join(finding.text.split())
    typer.echo(f"{typer.style(f'{finding.level:<8}', fg=_COLOURS[finding.level])} {text}")


@slime.command()
def init(
    env: Annotated[str, typer.Option(help="The environment: my_env.py:MyEnv or package.module:MyEnv.")],
    model: Annotated[str, typer.Option(help="A model's name or folder, such as Qwen/Qwen3-4B.")],
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Where run.sh and agentrl.yaml go.")] = Path(),
    gpus: Annotated[int, typer.Option(help="GPUs of each node.")] = 8,
    nodes: Annotated[int, typer.Option(help="Nodes of the Ray cluster.")] = 1,
    fp8: Annotated[bool, typer.Option("--fp8", help="Generate with FP8 weights; training stays BF16.")] = False,
    fully_async: Annotated[
        bool, typer.Option("--fully-async", help="Generate while training, on half of the GPUs.")
    ] = False,
) -> None:
    """Write a launch script and agentrl.yaml for a model size and a number of GPUs."""
    with one_line_errors():
        from agentrl.env import Envs
        from agentrl.slime.launch import write_launch
        from agentrl.slime.layouts import Launch, model_name

        Envs(env)
        file, colon, name = env.rpartition(":")
        if file.endswith(".py"):  # slime runs elsewhere
            env = f"{Path(file).resolve()}{colon}{name}"
        launch = Launch(model_name(model), env, gpus=gpus, nodes=nodes, fp8=fp8, fully_async=fully_async)
        for path in write_launch(launch, folder):
            typer.echo(f"wrote {path}")
