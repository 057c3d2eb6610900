"""`agentrl show --list`: the episodes of a run or a file, a line each."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentrl.cli._session import visible
from agentrl.types import JSON

if TYPE_CHECKING:
    from agentrl.view.query import Listed, Query

_COLUMNS = ("episode", "task", "reward", "stop", "turns", "tokens", "trained", "masked", "seconds", "answer")


def print_list(path: Path, query: Query, *, worst: int | None, as_json: bool) -> None:
    """Print the episodes of the query. Raises ConfigError."""
    episodes = query.ordered(_listed(path, query))[:worst]
    if as_json:
        for file, number, outline in episodes:
            typer.echo(json.dumps({"file": file, "index": number, **outline}, ensure_ascii=False))
        return
    table = Table(box=None, pad_edge=False)
    for column in _COLUMNS:
        numeric = column in ("reward", "turns", "tokens", "trained", "seconds")
        table.add_column(column, justify="right" if numeric else "left", no_wrap=column != "answer")
    for file, number, outline in episodes:
        table.add_row(*(Text(visible(cell)) for cell in _cells(file, number, outline)))
    console = Console()
    console.print(table, soft_wrap=not console.is_terminal)
    console.print(f"{len(episodes)} episodes", highlight=False)


def _listed(path: Path, query: Query) -> Iterator[Listed]:
    from agentrl.view.files import outlines
    from agentrl.view.sources import open_source

    source = open_source(path)
    for name in source.listing():
        for number, outline in outlines(source.file(name)):
            if query.matches(outline):
                yield name, number, outline


def _cells(file: str, number: int, outline: Mapping[str, JSON]) -> Sequence[str]:
    masked = ", ".join(f"{tokens} {reason}" for reason, tokens in outline.get("masked", {}).items())
    reward = outline.get("reward")
    seconds = outline.get("generate_s", 0.0) + outline.get("env_s", 0.0)
    return (
        f"{file} {number}",
        str(outline.get("task", "")),
        "none" if reward is None else f"{reward:g}",
        str(outline.get("stop", "none")),
        str(outline.get("turns", 0)),
        str(outline.get("tokens", 0)),
        str(outline.get("trained", 0)),
        masked or "0",
        f"{seconds:.1f}",
        str(outline.get("failure") or outline.get("answer", "")).replace("\n", " "),
    )
