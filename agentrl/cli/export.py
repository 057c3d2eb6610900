"""`agentrl export`: the script with which another trainer runs an Env."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from agentrl.cli._errors import one_line_errors
from agentrl.cli.settings import parse_settings


class HostName(StrEnum):
    TRL = "trl"
    TINKER = "tinker"
    VERIFIERS = "verifiers"
    OPENENV = "openenv"
    VERL = "verl"


def export(
    env: Annotated[str, typer.Argument(metavar="ENV", help="file.py:Class, package.module:Class, or a name.")],
    to: Annotated[HostName, typer.Option(help="The trainer or server that runs the script.")],
    model: Annotated[str, typer.Option(help="The model that the script trains.")] = "Qwen/Qwen3-0.6B",
    data: Annotated[Path | None, typer.Option(help="A file of tasks; default: the Env's own tasks.")] = None,
    out: Annotated[Path | None, typer.Option(help="The script's file, such as train_trl.py. It must be new.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A key of the Env, such as limits.turns=4 or env_config.n=3."),
    ] = None,
) -> None:
    """Write a short script with which another trainer runs an Env: TRL, Tinker and verl on agentrl's exact
    tokens, verifiers and OpenEnv by messages.

    agentrl export my_env.py:MyEnv --to trl

    agentrl export my_env.py:MyEnv --to tinker --data tasks.jsonl --set limits.turns=4

    Run the script in the same folder. The script is yours to edit.
    """
    with one_line_errors():
        from agentrl.errors import ConfigError
        from agentrl.hosts.export import SCRIPTS, script

        file = out or Path(SCRIPTS[to.value].file)
        keys = {**parse_settings(settings or ()), **({"data": str(data)} if data else {})}
        text = script(env, to.value, model=model, file=file.name, settings=keys)
        if file.exists():
            raise ConfigError(f"{file} exists; name another file with --out, or remove it")
        file.write_text(text, encoding="utf-8")
    typer.echo(f"wrote {file}")
