"""`agentrl eval`: how well a model does in an environment."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from agentrl._interrupts import run
from agentrl.cli._errors import one_line_errors
from agentrl.cli.episodes import EpisodeConfig, check_out, progress, refuse_all_failed, write_trajectories
from agentrl.cli.models import import_slow, open_model, run_config
from agentrl.cli.options import Data, Device, DeviceName, EngineName, EnvPath, EpisodeSettings, Limit, ModelName, Out
from agentrl.env import EnvFactory
from agentrl.errors import ConfigError
from agentrl.loading import load_object
from agentrl.monitor.by_key import Score, scores_by, value_of
from agentrl.options import EpisodeOptions

if TYPE_CHECKING:
    from agentrl.engine.base import SamplingParams
    from agentrl.trajectory import Trajectory
    from agentrl.types import Task


@dataclass(frozen=True, slots=True)
class _Job:
    env: str
    model: str
    data: Path
    limit: int | None
    out: Path | None
    samples: int
    sampling_params: SamplingParams
    device: DeviceName
    engine: str
    config: EpisodeConfig
    reward: str | None
    thinking: Literal["keep", "strip"]
    by: str | None


def evaluate(
    env: EnvPath,
    model: ModelName,
    data: Data,
    limit: Limit = None,
    out: Out = None,
    temperature: Annotated[float, typer.Option(help="0 is greedy.", min=0.0)] = 0.0,
    samples: Annotated[int, typer.Option(help="Episodes of each task.", min=1)] = 1,
    device: Device = DeviceName.AUTO,
    engine: EngineName = "local",
    settings: EpisodeSettings = None,
    by: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="A row for each value of this key of the metadata, and their average."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Play held-out tasks with a model, and print how well it did.

    A run's folder brings the limits and `thinking` it was trained with and, for the Env it was trained in, its
    env_config and reward.
    """
    with one_line_errors():
        if samples > 1 and temperature == 0:
            raise ConfigError(f"--samples {samples}: all samples are equal at --temperature 0; add --temperature 1")
        trained_with = _trained_with(model, env)
        reward, thinking = trained_with.pop("reward", None), trained_with.pop("thinking", "keep")
        config = EpisodeConfig.parse(settings or (), trained_with, with_engine=True)
        job = _Job(
            env,
            model,
            data,
            limit,
            out,
            samples,
            {"temperature": temperature},
            device,
            engine,
            config,
            reward,
            thinking,
            by,
        )
        prepared = _prepare(job)
        import_slow(weights=engine == "local")
        groups = run(_evaluate(job, *prepared))
    _report(groups, f"{model} in {env} on {data}", by, as_json=as_json)
    with one_line_errors(lambda: "mend that, and run the command again"):
        refuse_all_failed([trajectory for group in groups for trajectory in group])


def _prepare(job: _Job) -> tuple[EnvFactory, Any, list[Task]]:
    """The Env, the reward function and the tasks. Raises ConfigError. Nothing is written, and no model loaded."""
    from agentrl.rollout import load_tasks

    envs, reward = EnvFactory(job.env, job.config.env_config), load_object(job.reward) if job.reward else None

    def check(task: Task) -> None:
        envs.check(task)
        if job.by is not None:
            value_of(task, job.by)

    tasks = load_tasks(job.data, split="eval", check=check)[: job.limit]
    check_out(job.out, job.data)
    return envs, reward, tasks


async def _evaluate(job: _Job, envs: EnvFactory, reward: Any, tasks: Sequence[Task]) -> list[list[Trajectory]]:
    """Episodes by task."""
    from agentrl.rollout import Rollout, run_groups

    async with open_model(job.model, job.device, job.engine, job.config.engine_config) as model, envs:
        rollout = Rollout(
            envs=envs,
            engine=model.engine,
            renderer=model.renderer,
            options=EpisodeOptions(limits=job.config.limits, thinking=job.thinking),
            reward=reward,
        )
        with progress("episodes", len(tasks) * job.samples) as on_episode:
            groups = await run_groups(
                rollout, tasks, job.samples, sampling_params=job.sampling_params, name="eval", on_episode=on_episode
            )
    if job.out is not None:
        write_trajectories(job.out, [trajectory for group in groups for trajectory in group])
    return groups


def _trained_with(model: str, env: str) -> dict[str, Any]:
    """The settings of the run in folder `model`, as defaults; empty if it is not a run's folder."""
    run = run_config(model)
    if run is None:
        return {}
    own = {"env_config": run.env_config, "reward": run.reward} if run.env == env else {}
    return {"limits": run.limits, "thinking": run.thinking, **own}


def _report(groups: Sequence[Sequence[Trajectory]], title: str, by: str | None, *, as_json: bool) -> None:
    figures = _figures(groups)
    scores, average = scores_by(by, groups) if by is not None else ({}, None)
    if not as_json:
        _print_table(title, figures)
        if by is not None and average is not None:
            _print_scores(by, scores, average)
        return
    if average is not None:
        of_values = {name: score.to_json() for name, score in scores.items()}
        figures["by"] = {"key": by, "values": of_values, "average": average.to_json()}
    typer.echo(json.dumps(figures))


def _figures(groups: Sequence[Sequence[Trajectory]]) -> dict[str, Any]:
    from agentrl.rollout import Evaluation

    samples = len(groups[0])
    best = [max((t.reward for t in group if t.reward is not None), default=None) for group in groups]
    scored = [reward for reward in best if reward is not None]
    metrics = Evaluation.of([trajectory for group in groups for trajectory in group]).metrics.to_json()
    return {
        "reward_mean": metrics.pop("reward_mean"),
        **({f"best_of_{samples}": fmean(scored)} if samples > 1 and scored else {}),
        "failed": metrics.pop("failed_episodes"),
        **{name: value for name, value in metrics.items() if name not in _TRAINING},
    }


_TRAINING = ("groups", "zero_advantage_groups", "samples", "resumes", "restarts")
"""Metrics that say nothing about an evaluation."""


def _print_table(title: str, figures: Mapping[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("", "", show_header=False)
    for name, value in figures.items():
        if isinstance(value, dict):
            text = ", ".join(f"{key} {count}" for key, count in value.items()) or "none"
        else:
            text = f"{value:.3f}" if isinstance(value, float) else f"{value}"
        table.add_row(name.replace("_", " "), text)
    console = Console()
    console.print(title, highlight=False, markup=False)
    console.print(table)


def _print_scores(key: str, scores: Mapping[str, Score], average: Score) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(key, "reward mean", "95 % interval", "tasks", "failed")
    for name, score in (*scores.items(), ("average", average)):
        mean, low, high = ("-" if value is None else f"{value:.3f}" for value in (score.mean, score.low, score.high))
        table.add_row(name, mean, f"{low} to {high}", f"{score.tasks}", f"{score.failed}")
    table.rows[-2].end_section = True
    Console(markup=False).print(table)
