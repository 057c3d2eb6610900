"""`agentrl play`: episodes with a scripted player, recorded as demonstrations or to validate an Env."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from agentrl._concurrency import gather
from agentrl._interrupts import run
from agentrl.cli._errors import one_line_errors
from agentrl.cli.episodes import (
    EpisodeConfig,
    OnEpisode,
    check_out,
    progress,
    refuse_all_failed,
    write_trajectories,
)
from agentrl.cli.models import open_renderer
from agentrl.cli.options import Data, EnvPath, EpisodeSettings, Limit, ModelName, Out
from agentrl.engine.scripted import Turn
from agentrl.env import EnvFactory
from agentrl.errors import ConfigError
from agentrl.loading import cause, load_object
from agentrl.testing import rollout
from agentrl.trajectory import Trajectory
from agentrl.types import Task

if TYPE_CHECKING:
    from agentrl.render.base import Renderer

Player: TypeAlias = Callable[[Task], Generator[Turn, str, None]]
"""Yields the turns of one episode. Each yield returns the environment's answer as text."""

_CONCURRENCY = 32
"""Episodes in flight: enough to hide the waiting of an environment, but not too many for any."""


def play(
    env: EnvPath,
    data: Data,
    player: Annotated[str, typer.Option(help="A generator function: file.py:function or package.module:function.")],
    model: ModelName = "tiny",
    limit: Limit = None,
    out: Out = None,
    settings: EpisodeSettings = None,
) -> None:
    """Play episodes with a scripted player, and record them as demonstrations.

    A player is a generator that takes a Task and yields the model's turns: text, or agentrl.testing.call(tool, ...).
    Each yield returns the environment's answer.

    A player that knows the answers and one that does nothing show whether an environment can be won, and only by
    playing it. The model gives its tokenizer and chat template.
    """
    with one_line_errors():
        config = EpisodeConfig.parse(settings or ())
        trajectories = run(_play(env, data, player, model, limit, out, config))
    _report(trajectories, out)
    with one_line_errors(lambda: "mend that, and run the command again"):
        refuse_all_failed(trajectories)


def load_player(path: str) -> Player:
    """The player at `file.py:function` or `package.module:function`. Raises ConfigError."""
    found = load_object(path)
    if not callable(found):
        raise ConfigError(f"--player {path} is {found!r}; it must be a generator function that takes a Task")

    def start(task: Task) -> Generator[Turn, str, None]:
        try:
            turns = found(task)
            if not isinstance(turns, Generator):
                raise ConfigError(f"--player {path} returned {type(turns).__name__}; it must yield its turns")
            yield from turns
        except ConfigError:
            raise
        except Exception as exc:  # the player's boundary
            raise ConfigError(f"--player {path} failed on task {task.id}: {cause(exc)}") from exc

    return start


async def _play(
    env: str, data: Path, player: str, model: str, limit: int | None, out: Path | None, config: EpisodeConfig
) -> list[Trajectory]:
    from agentrl.rollout import load_tasks

    envs, start = EnvFactory(env, config.env_config), load_player(player)
    tasks = load_tasks(data, split="train", check=envs.check)[:limit]
    check_out(out, data)
    renderer, _ = open_renderer(model)  # transformers takes seconds to import
    async with envs:
        with progress("playing", len(tasks)) as on_episode:
            trajectories = await _episodes(envs, start, tasks, renderer, config, on_episode)
    if out is not None:
        write_trajectories(out, trajectories)
    return trajectories


async def _episodes(
    envs: EnvFactory,
    player: Player,
    tasks: Sequence[Task],
    renderer: Renderer,
    config: EpisodeConfig,
    on_episode: OnEpisode,
) -> list[Trajectory]:
    """One episode of each task, in order. A broken environment masks its episode; a bug ends all episodes."""
    from agentrl.rollout import BugError

    slots = asyncio.Semaphore(_CONCURRENCY)

    async def episode(task: Task) -> Trajectory:
        async with slots:
            try:
                trajectory = await rollout(envs.make(), task, player(task), renderer=renderer, limits=config.limits)
            except AssertionError as exc:  # the script ended before the episode, or a tool has a bug
                raise ConfigError(f"task {task.id}: {str(exc).partition(chr(10))[0]}") from exc
        if trajectory.failure is not None:
            if trajectory.failure.kind == "bug":
                raise BugError(trajectory.failure, trajectory.session_id)
            trajectory.mask("env_failure")
        on_episode(trajectory)
        return trajectory

    return await gather(episode(task) for task in tasks)


def _report(trajectories: Sequence[Trajectory], out: Path | None) -> None:
    rewards = [t.reward for t in trajectories if t.reward is not None]
    typer.echo(f"episodes     {len(trajectories)}")
    typer.echo(f"failed       {sum(t.failure is not None for t in trajectories)}")
    typer.echo(f"mean reward  {f'{fmean(rewards):.3f}' if rewards else 'none: no episode was scored'}")
    typer.echo(f"mean turns   {fmean(len(t.turns) for t in trajectories):.2f}")
    if out is not None:
        typer.echo(f"written to {out}; look at the first with: agentrl show {out}")
