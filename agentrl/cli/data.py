"""`agentrl data`: rows for training, written from data in other formats."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from agentrl.cli._errors import one_line_errors
from agentrl.errors import ConfigError
from agentrl.loading import load_object

data = typer.Typer(help="Write rows for training from data in other formats.", no_args_is_help=True)


class Form(StrEnum):
    TAGS = "tags"
    TOOLS = "tools"


@data.callback()
def _group() -> None:
    """Keeps `search-r1` a command of its own while there is no other."""


@data.command("search-r1")
def search_r1(
    qa: Annotated[Path, typer.Argument(help='JSONL of {"question", "golden_answers": [...], "source"?}.')],
    out: Annotated[Path, typer.Option(help="The folder for train.jsonl and test.jsonl.")],
    test_share: Annotated[
        float, typer.Option(help="Share of each source's questions to hold out.", min=0, max=1)
    ] = 0.1,
    seed: Annotated[int, typer.Option(help="Chooses the questions that are held out.")] = 0,
    form: Annotated[Form, typer.Option(help="The prompt: the paper's tags, or native tool calls.")] = Form.TAGS,
) -> None:
    """Write rows in the format of Search-R1's data, with the paper's prompt.

    The same questions and seed give the same split, in whatever order they stand in the file.
    """
    with one_line_errors():
        if out.exists() and not out.is_dir():
            raise ConfigError(f"--out {out} is a file; name a folder")
        write = load_object("agentrl_envs.search_r1.rows:write_rows")
        for file in write(qa, out, test_share=test_share, seed=seed, form=form.value):
            rows = file.read_bytes().count(b"\n")
            typer.echo(f"{file}  {rows} rows")
