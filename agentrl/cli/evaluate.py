"""`agentrl eval`: how well a model does in an environment."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from agentrl._interrupts import run
from agentrl.cli._errors import one_line_errors
from agentrl.cli.episodes import EpisodeConfig, check_out, progress, write_trajectories
from agentrl.cli.models import open_model, run_config
from agentrl.cli.options import Data, Device, DeviceName, EngineName, EnvPath, EpisodeSettings, Limit, ModelName, Out
from agentrl.env import EnvFactory
from agentrl.errors import ConfigError
from agentrl.loading import load_object
from agentrl.options import EpisodeOptions

if TYPE_CHECKING:
    from agentrl.engine.base import SamplingParams
    from agentrl.rollout import Evaluation


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
        )
        figures = _figures(run(_evaluate(job)), samples)
    if as_json:
        typer.echo(json.dumps(figures))
    else:
        _print_table(f"{model} in {env} on {data}", figures)


async def _evaluate(job: _Job) -> Evaluation:
    from agentrl.rollout import Evaluation, Rollout, load_tasks, run_groups

    envs, reward = EnvFactory(job.env, job.config.env_config), load_object(job.reward) if job.reward else None
    tasks = load_tasks(job.data, split="eval", check=envs.check)[: job.limit]
    check_out(job.out, job.data)
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
    evaluation = Evaluation.of([trajectory for group in groups for trajectory in group])
    if job.out is not None:
        write_trajectories(job.out, evaluation.trajectories)
    return evaluation


def _trained_with(model: str, env: str) -> dict[str, Any]:
    """The settings of the run in folder `model`, as defaults; empty if it is not a run's folder."""
    run = run_config(model)
    if run is None:
        return {}
    own = {"env_config": run.env_config, "reward": run.reward} if run.env == env else {}
    return {"limits": run.limits, "thinking": run.thinking, **own}


def _figures(evaluation: Evaluation, samples: int) -> dict[str, Any]:
    rewards = [-math.inf if t.reward is None else t.reward for t in evaluation.trajectories]
    best = [max(rewards[i : i + samples]) for i in range(0, len(rewards), samples)]
    scored = [reward for reward in best if reward > -math.inf]
    metrics = evaluation.metrics.to_json()
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
