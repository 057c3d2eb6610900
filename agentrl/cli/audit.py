"""`agentrl audit`: is every sampled token trained, or is it said why not? For the records of any framework."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentrl.cli._errors import one_line_errors
from agentrl.cli._session import visible

if TYPE_CHECKING:
    from agentrl.view.audit import AuditReport, Decode
    from agentrl.view.model import EpisodeRecord
    from agentrl.view.sources import Source


def audit(
    files: Annotated[
        list[Path],
        typer.Argument(help="Runs' folders, or files: trajectories, slime's dumps, verifiers' traces, ATIF, chat."),
    ],
    model: Annotated[
        str | None, typer.Option(help="A model whose tokenizer shows whether text was encoded again or rewritten.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Count every sampled token: trained, masked with a reason, or lost. What a file does not tell is "not told".

    agentrl audit runs/demo rollout_data/5.pt traces.jsonl

    Exit code: 0 nothing is lost; 1 something is; 3 nothing is, as far as the files tell, but they do not tell all.
    """
    with one_line_errors(lambda: "nothing was changed"):
        from agentrl.view.sources import open_source

        reports = [report for path in files for report in _reports(open_source(path), model)]
    if as_json:
        typer.echo(json.dumps([report.to_json() for report in reports], indent=1))
    else:
        _print(reports)
    codes = {report.exit_code for report in reports}
    raise typer.Exit(1 if 1 in codes else 3 if 3 in codes else 0)


def _reports(source: Source, model: str | None) -> Iterator[AuditReport]:
    from agentrl.view.audit import audit as audited

    decode = _decoder(model or source.model)
    for name in source.listing():
        yield audited(f"{source.name}/{name}" if source.kind != "file" else name, _episodes(source, name), decode)


def _episodes(source: Source, name: str) -> Iterator[tuple[str, EpisodeRecord]]:
    from agentrl.view.files import NotKeptError

    file = source.file(name)
    for number in range(file.refresh()):
        try:
            yield f"{name} #{number}", file.episode(number)
        except NotKeptError:
            continue


def _decoder(model: str | None) -> Decode | None:
    if model is None:
        return None
    from agentrl.models import load_tokenizer

    tokenizer = load_tokenizer(model)
    return lambda ids: str(tokenizer.decode(list(ids)))


def _print(reports: list[AuditReport]) -> None:
    table = Table(box=None, pad_edge=False)
    for column in ("file", "format"):
        table.add_column(column)
    for column in ("episodes", "samples", "sampled", "trained", "masked", "not told", "split"):
        table.add_column(column, justify="right", no_wrap=True)
    for report in reports:
        numbers = (report.episodes, report.sequences, report.sampled, report.trained, sum(report.masked.values()))
        split = f"{report.split} of {report.conversations}"
        cells = [*map(str, numbers), str(report.untold), split]
        table.add_row(Text(visible(report.name)), ", ".join(report.formats), *cells)
    console = Console()
    console.print(table)
    for report in reports:
        _print_findings(report, console)
    lost = sum(finding.severity == "lost" for report in reports for finding in report.findings)
    untold = sum(finding.severity == "not told" for report in reports for finding in report.findings)
    console.print(
        f"{lost} kinds of losses, {untold} things not told" if lost or untold else "nothing is lost", highlight=False
    )


def _print_findings(report: AuditReport, console: Console) -> None:
    if report.masked:
        reasons = ", ".join(f"{tokens} {reason}" for reason, tokens in sorted(report.masked.items()))
        console.print(Text(visible(f"{report.name}: masked {reasons}")), soft_wrap=True)
    for finding in report.findings:
        tokens = f", {finding.tokens} tokens" if finding.tokens else ""
        times = f"{finding.count} times{tokens}" if finding.count > 1 else f"once{tokens}"
        line = f"{report.name}: {finding.severity}: {finding.kind}, {times}; first at {finding.first}: {finding.detail}"
        console.print(Text(visible(line)), soft_wrap=True)
