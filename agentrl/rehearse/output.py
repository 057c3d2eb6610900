"""The report as text: tables and a verdict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from rich.console import Console
from rich.table import Table

from agentrl.rehearse.plan import Replacement
from agentrl.rehearse.report import RehearsalReport
from agentrl.rehearse.stages import Stage, State

_COLOURS = {State.OK: "green", State.FAILED: "red", State.TIMED_OUT: "red", State.RUNNING: "yellow"}
_WIDTH = 140
_LONG = 60
_MOST = 8
"""The most values that one line lists. A longer series is printed as its least and greatest value."""


def print_replacements(console: Console, replacements: Iterable[Replacement]) -> None:
    """Print the table of replaced flags. Switches with the same reason share a row."""
    table = Table(
        "flag", "launch", "rehearsal", "reason", title="Replaced flags; every other flag is as written", box=None
    )
    for row in _joined(replacements):
        table.add_row(*map(_short, row))
    console.print(table)


def _joined(replacements: Iterable[Replacement]) -> Iterator[tuple[str, str, str, str]]:
    switches: dict[str, list[str]] = {}
    for item in replacements:
        if item.before is None and item.after == "":
            switches.setdefault(item.reason, []).append(item.flag)
            continue
        before = "-" if item.before is None else item.before or "(set)"
        yield item.flag, before, "(left out)" if item.after is None else item.after, item.reason
    for reason, flags in switches.items():
        yield " ".join(flags), "-", "(set)", reason


def _short(text: str) -> str:
    return text if len(text) <= _LONG or text.startswith("--") else f"...{text[-(_LONG - 3) :]}"


def print_report(console: Console, report: RehearsalReport) -> None:
    table = Table("stage", "", "seconds", "times", title="Stages", box=None)
    for stage in report.stages:
        table.add_row(*_stage_row(stage))
    console.print(table)
    for line in [*_figure_lines(report.figures), *(f"note: {note}" for note in report.notes)]:
        console.print(line, highlight=False, markup=False)
    for problem in report.problems:
        console.print(f"PROBLEM {problem}", style="red", highlight=False, markup=False)
    where = f" (log: {report.log})" if report.log else ""
    console.print(f"rehearsal: {report.verdict}{where}", style="bold", highlight=False, markup=False)


def _stage_row(stage: Stage) -> tuple[str, str, str, str]:
    colour = _COLOURS.get(stage.state, "dim")
    seconds = "" if stage.seconds is None else f"{stage.seconds:.1f}"
    return stage.name, f"[{colour}]{stage.state}[/]", seconds, str(stage.times or "")


def _figure_lines(figures: dict[str, Any]) -> Iterator[str]:
    if rows := figures.get("log_probs"):
        yield f"log-probs, engine against trainer: {_log_probs(rows)}"
    if ledger := figures.get("ledger"):
        masked = ", ".join(f"{reason} {count}" for reason, count in ledger["masked"].items()) or "none"
        yield f"tokens: {ledger['sampled']} sampled, {ledger['trained']} trained; masked: {masked}"
    if episodes := figures.get("episodes"):
        played, failed = episodes["played"], episodes["failed"]
        yield f"episodes: {played} played, {failed} failed, {episodes['turns']} turns on average"
    if rewards := figures.get("rewards"):
        groups = figures["groups"]
        yield (
            f"rewards: mean {rewards['mean']:.3g}, {rewards['least']:.3g} to {rewards['most']:.3g}; "
            f"{groups['count'] - groups['without_spread']} of {groups['count']} groups have a spread"
        )
    for row in figures.get("evaluation", []):
        values = ", ".join(
            f"{name} {value:.3g}" for name, value in row.items() if name not in ("rollout", "failed_episodes")
        )
        if values:
            yield f"evaluation after rollout {row['rollout']}: {values}"
    if seconds := figures.get("step_seconds"):
        all_steps = ", ".join(f"{step:.1f}" for step in seconds)
        text = all_steps if len(seconds) <= _MOST else f"{min(seconds):.1f} to {max(seconds):.1f}"
        yield f"a rollout and its training took {text} s"
    if figures.get("memory_bytes"):
        yield f"{figures['memory_bytes'] / 1e9:.1f} GB of memory, {figures['seconds']:.0f} s"


def _log_probs(rows: list[dict[str, Any]]) -> str:
    if len(rows) <= _MOST:
        return ", ".join(f"{row['difference']:.4f} (update {row['update']})" for row in rows)
    differences = [row["difference"] for row in rows]
    updates = f"updates {rows[0]['update']} to {rows[-1]['update']}"
    return f"{min(differences):.4f} to {max(differences):.4f} ({updates}, {len(rows)} steps)"


def console(*, stderr: bool = False) -> Console:
    """A console that does not wrap into the width of a narrow terminal or of a file."""
    screen = Console(stderr=stderr)
    return screen if screen.is_terminal else Console(stderr=stderr, width=_WIDTH, soft_wrap=False)
