"""`agentrl slime`: write the launch of a slime run. The room `rehearse` adds `agentrl slime rehearse`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentrl.cli._errors import one_line_errors

slime = typer.Typer(help="Write a launch script for slime, and rehearse it.", no_args_is_help=True)


@slime.callback()
def _root() -> None:
    """Makes typer read `init` as a subcommand, also if the group has no other."""


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
