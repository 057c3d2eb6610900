"""`agentrl init`: a new environment, as a package that trains."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from agentrl.cli._errors import one_line_errors


class ProjectTemplate(StrEnum):
    TOOL = "tool"
    AGENT = "agent"
    GAME = "game"
    RETRIEVAL = "retrieval"
    SANDBOX = "sandbox"
    USER_SIMULATOR = "user-simulator"
    SEARCH_R1 = "search-r1"


def init(
    name: Annotated[str, typer.Argument(help="Name of the package and its folder, such as weather.")],
    template: Annotated[ProjectTemplate, typer.Option(help="The example to start from.")] = ProjectTemplate.TOOL,
) -> None:
    """Write a new environment: a package with an Env, players, tasks, a test and a configuration that trains.

    tool: questions that a tool answers. agent: a program of yours, with its own loop. game: moves in a world.
    retrieval: questions over passages. sandbox: bash. user-simulator: a customer to serve. search-r1: Search-R1's tags
    over a corpus of your own.
    """
    from agentrl.init import write_project

    with one_line_errors():
        for path in write_project(name, template.value):
            typer.echo(f"wrote {path}")
    typer.echo(f"next: cd {name}, and read README.md")
