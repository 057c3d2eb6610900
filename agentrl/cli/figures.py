"""Print the metrics of episodes as JSON, or as tables."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

import typer

from agentrl.cli.episodes import warn_unscored
from agentrl.monitor.by_key import Score, passes, score_of, scores_by
from agentrl.monitor.earned import rewards_of

if TYPE_CHECKING:
    from agentrl.trajectory.trajectory import Trajectory

_TRAINING = ("groups", "zero_advantage_groups", "uncredited_groups", "failed_groups", "samples", "resumes", "restarts")
"""Metrics of training, without a meaning for an evaluation."""
_OF_TOOLS = ("episodes_with_tools", "tool_call_rate", "bad_call_rate", "tool_errors")
_OF_TOKENS = ("trained_tokens", "masked_tokens", "prefix_breaks")
"""Metrics that matter only for training."""
_COUNTED = (
    "requests",
    "prompt_tokens",
    "completion_tokens",
    "cached_tokens",
    "responses_without_usage",
    "filtered",
    "cost",
)
_PER_PRICE = 1e6
_NO_PLAYER = "An API's turns come without log-probs: nothing here can be trained by reinforcement."


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """How a report prints the metrics of episodes."""

    title: str
    by: str | None = None
    least: float = 1.0
    """The smallest reward with which an episode passes."""
    prices: tuple[float, float] | None = None
    as_json: bool = False


def report(groups: Sequence[Sequence[Trajectory]], options: ReportOptions) -> None:
    """Print the metrics of episodes. Each group has the episodes of a task."""
    groups = [group for group in groups if group]
    figures = figures_of(groups, options)
    warn_unscored(figures["unscored"])
    scores, average = scores_by(options.by, groups) if options.by is not None else ({}, None)
    if not options.as_json:
        _print_table(options.title, figures)
        if options.by is not None and average is not None:
            _print_scores(options.by, scores, average)
        return
    if average is not None:
        of_values = {name: score.to_json() for name, score in scores.items()}
        figures["by"] = {"key": options.by, "values": of_values, "average": average.to_json()}
    typer.echo(json.dumps(figures))


def figures_of(groups: Sequence[Sequence[Trajectory]], options: ReportOptions) -> dict[str, Any]:
    from agentrl.rollout import Evaluation

    samples, episodes = max(map(len, groups)), [trajectory for group in groups for trajectory in group]
    earned = [rewards_of(group) for group in groups]
    best = [max(rewards) for rewards in earned if rewards]
    metrics = Evaluation.of(episodes).metrics.to_json()
    overall = score_of([fmean(rewards) for rewards in earned if rewards])
    mean = metrics.pop("reward_mean")
    return {
        "reward_mean": mean if any(earned) else None,
        "reward_interval": [overall.low, overall.high],
        "pass_at": {str(k): score.to_json() for k, score in passes(groups, options.least).items()},
        **({f"best_of_{samples}": fmean(best)} if samples > 1 and best else {}),
        "failed": metrics.pop("failed_episodes"),
        "unscored": metrics.pop("unscored_episodes"),
        **{name: value for name, value in metrics.items() if name not in _TRAINING},
        **player_figures(episodes, options.prices),
    }


def player_figures(episodes: Sequence[Trajectory], prices: tuple[float, float] | None) -> dict[str, Any]:
    """The cost of an API's answers, summed over the episodes. Empty if an API played none of them."""
    players = [episode.info["player"] for episode in episodes if "host" in episode.info.get("player", {})]
    if not players:
        return {}
    totals: Counter[str] = Counter()
    for player in players:
        totals.update({name: player[name] for name in _COUNTED if name in player})
    counts: dict[str, float] = {name: round(totals[name], 6) for name in _COUNTED if name in totals}
    if prices is not None:
        used = totals["prompt_tokens"], totals["completion_tokens"]
        counts["cost"] = round(sum(price * count for price, count in zip(prices, used, strict=True)) / _PER_PRICE, 6)
    return {"player": f"{players[0]['model']} at {players[0]['host']}", "trainable": False, "usage": counts}


def _print_table(title: str, figures: Mapping[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("", "", show_header=False)
    for name, text in _rows(figures):
        table.add_row(name.replace("_", " "), text)
    console = Console()
    console.print(title, highlight=False, markup=False)
    console.print(table)
    if figures.get("trainable") is False:
        console.print(_NO_PLAYER, highlight=False, markup=False)


def _rows(figures: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    low, high = figures["reward_interval"]
    hidden = {*(() if figures["episodes_with_tools"] else _OF_TOOLS)}
    hidden |= {*(() if figures["unscored"] else ("unscored",))}
    hidden |= {*(_OF_TOKENS if figures.get("trainable") is False else ())}
    for name, value in figures.items():
        match name:
            case _ if name in hidden:
                pass
            case "reward_mean" if value is None:
                yield name, f"unscored {figures['unscored']}" if figures["unscored"] else "none"
            case "reward_mean":
                yield name, _text(value) + ("" if low is None else f"  (95 %: {low:.3f} to {high:.3f})")
            case "pass_at":
                for k, score in value.items():
                    if score["mean"] is not None:
                        low, high = score["interval"]
                        yield f"pass@{k}", f"{score['mean']:.3f}  (95 %: {low:.3f} to {high:.3f})"
            case "reward_interval":
                pass
            case "trainable":
                yield name, "no"
            case _:
                yield name, _text(value)


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key.replace('_', ' ')} {count}" for key, count in value.items()) or "none"
    return f"{value:.3f}" if isinstance(value, float) else f"{value}"


def _print_scores(key: str, scores: Mapping[str, Score], average: Score) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(key, "reward mean", "95 % interval", "tasks", "failed")
    for name, score in (*scores.items(), ("average", average)):
        mean, low, high = ("-" if value is None else f"{value:.3f}" for value in (score.mean, score.low, score.high))
        table.add_row(name, mean, f"{low} to {high}", f"{score.tasks}", f"{score.failed}")
    table.rows[-2].end_section = True
    Console(markup=False).print(table)
