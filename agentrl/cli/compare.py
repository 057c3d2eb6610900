"""`agentrl compare`: runs beside each other, in the terminal."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentrl.cli._errors import one_line_errors
from agentrl.cli._session import visible
from agentrl.errors import ConfigError

if TYPE_CHECKING:
    from agentrl.monitor.by_key import Score
    from agentrl.view.sources import Run

_METRICS = (
    "reward_mean",
    "response_length_mean",
    "turns_mean",
    "zero_advantage_groups",
    "logprob_diff_mean",
    "seconds",
)
_BARS = " ▁▂▃▄▅▆▇█"
_WIDTH = 24


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, two or more.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare runs: reward curves, held-out rewards with 95 % intervals, and the keys that differ. Runs of the same Env
    and tasks are also compared task by task.

    agentrl compare runs/one runs/other

    In a browser, with their episodes: agentrl view runs/one runs/other
    """
    with one_line_errors(lambda: "nothing was changed"):
        opened = [_open(path) for path in runs]
        if len(opened) < 2:
            raise ConfigError("compare needs two runs or more; agentrl view shows one")
        comparison = _compared(opened)
    if as_json:
        typer.echo(json.dumps(comparison, indent=1))
    else:
        _print(opened, comparison)


def _open(path: Path) -> Run:
    from agentrl.view.sources import Run, open_source

    source = open_source(path)
    if not isinstance(source, Run):
        raise ConfigError(f"{path} is no run's folder; give the --out of agentrl train")
    return source


def _compared(runs: Sequence[Run]) -> dict[str, Any]:
    from agentrl.view.comparing import differences, differing, ends, held_out, unlike

    scores = [held_out(run) for run in runs]
    names = dict.fromkeys(name for of_run in scores for name in of_run)
    metrics = [run.metrics() for run in runs]
    return {
        "runs": [str(run.path) for run in runs],
        "steps": [len(lines) for lines in metrics],
        "curve": [[line.get("reward_mean") for line in lines] for lines in metrics],
        "held_out": {name: [_json(s.get(name)) for s in scores] for name in names},
        "unlike": unlike(runs),
        "paired": list(map(_json, differences(runs))),
        "metrics": {name: [ends(lines, name) for lines in metrics] for name in _METRICS},
        "config": differing([run.config for run in runs]),
    }


def _json(score: Score | None) -> dict[str, Any] | None:
    return None if score is None else score.to_json()


def _print(runs: Sequence[Run], comparison: dict[str, Any]) -> None:
    console = Console()
    table = Table(box=None, pad_edge=False)
    for column in ("", *(str(run.path) for run in runs)):
        table.add_column(Text(visible(column)), overflow="fold")
    table.add_row("steps", *map(str, comparison["steps"]))
    drawn = [curve for curve in comparison["curve"] if curve]
    low, high = min(map(min, drawn), default=0.0), max(map(max, drawn), default=1.0)
    table.add_row("reward, sampled", *(sparkline(curve, low, high) for curve in comparison["curve"]))
    for name, scores in comparison["held_out"].items():
        table.add_row(f"held out, {name}", *map(_score, scores))
    if any(comparison["paired"]):
        table.add_row("held out, task by task", "", *map(_difference, comparison["paired"]))
    for name, values in comparison["metrics"].items():
        table.add_row(name.replace("_", " "), *("-" if v is None else f"{v[0]:.4g} -> {v[1]:.4g}" for v in values))
    console.print(table)
    for reason in comparison["unlike"]:
        console.print(Text(visible(f"not paired: {reason}")))
    console.print(
        f"(x -> y: the means of the first and of the last steps)\n{len(comparison['config'])} keys differ",
        highlight=False,
    )
    keys = Table(box=None, pad_edge=False, show_header=False)
    for key, values in comparison["config"].items():
        keys.add_row(
            Text(visible(f"  {key}")), *(Text(visible(json.dumps(value, ensure_ascii=False))) for value in values)
        )
    console.print(keys)


def _score(score: dict[str, Any] | None) -> str:
    if score is None or score["mean"] is None:
        return "-"
    low, high = score["interval"]
    failed = f", {score['failed']} failed" if score["failed"] else ""
    return f"{score['mean']:.3f} ({low:.3f} to {high:.3f}, {score['tasks']} tasks{failed})"


def _difference(score: dict[str, Any] | None) -> str:
    if score is None:
        return "-"
    low, high = score["interval"]
    return f"{score['mean']:+.3f} ({low:+.3f} to {high:+.3f}, {score['tasks']} tasks)"


def sparkline(values: Sequence[float], low: float, high: float) -> str:
    """A curve of block characters in a single line. If there are more values than columns, neighbours are averaged."""
    size = max(1, -(-len(values) // _WIDTH))
    means = [sum(part) / len(part) for i in range(0, len(values), size) if (part := values[i : i + size])]
    span = high - low or 1.0
    return "".join(_BARS[1 + round((mean - low) / span * (len(_BARS) - 2))] for mean in means)
