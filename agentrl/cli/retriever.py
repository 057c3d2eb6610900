"""`agentrl retriever`: BM25 over a corpus, with the HTTP contract that Search-R1's recipes use."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from agentrl._util.loading import load_object
from agentrl._util.signals import run
from agentrl.cli._errors import one_line_errors
from agentrl.errors import ConfigError

_ROOM = "agentrl_envs.search_r1.retrieval"  # by dotted path, as agentrl imports no environment


def retriever(
    corpus: Annotated[
        Path,
        typer.Argument(
            metavar="CORPUS", help=r'JSONL, one passage a line: {"id": "7", "contents": "\"Title\"\ntext"}.'
        ),
    ],
    host: Annotated[str, typer.Option(help="Address to listen at; 0.0.0.0 is every address.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen at; 0 takes a free one.", min=0, max=65535)] = 8000,
    topk: Annotated[int, typer.Option(help="Passages for a request that names no topk.", min=1, max=1000)] = 3,
    index_only: Annotated[bool, typer.Option("--index-only", help="Make the index, and serve nothing.")] = False,
) -> None:
    """Serve a corpus, until Ctrl-C: POST /retrieve, GET /health.

    The index is made at first use and kept beside the corpus. The server
    has no key: everyone who reaches the port may search.
    """
    interrupted = "no index was made; run the command again" if index_only else "the server has ended"
    with one_line_errors(lambda: interrupted):
        run(_index(corpus) if index_only else _serve(corpus, host, port, topk))


async def _index(corpus: Path) -> None:
    start = time.monotonic()
    index = await _opened(corpus)
    size = sum(file.stat().st_size for file in index.folder.iterdir())
    typer.echo(
        f"{index.documents} passages, {size / 2**20:.1f} MiB at {index.folder}, {time.monotonic() - start:.1f} s"
    )


async def _serve(corpus: Path, host: str, port: int, topk: int) -> None:
    with load_object(f"{_ROOM}.server:bind")(host, port) as listening:
        index = await _opened(corpus)
        async with load_object(f"{_ROOM}.server:running_server")(index, listening, topk) as url:
            typer.echo(f"{corpus}: {index.documents} passages at {url}, Ctrl-C ends it")
            await asyncio.Event().wait()


async def _opened(corpus: Path) -> Any:
    with _progress(f"indexing {corpus.name}") as tell:
        try:
            return await load_object(f"{_ROOM}.building:open_in_thread")(corpus, tell)
        except PermissionError as exc:
            raise ConfigError(f"{exc.filename}: {exc.strerror}; make it readable") from exc


@contextmanager
def _progress(title: str) -> Iterator[Any]:
    """Show the progress of indexing on a terminal as a bar, elsewhere as a line. Nothing is shown without documents."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=None, visible=False)
        is_shown = False

        def tell(done: int, size: int) -> None:
            nonlocal is_shown
            if not is_shown and not console.is_terminal:
                typer.echo(f"{title}: {size / 2**20:.1f} MiB", err=True)
            is_shown = True
            last = "finishing the index" if done == size else title
            bar.update(task, completed=done, total=size, visible=True, description=last)

        yield tell
