"""Helpers of the commands that play episodes: settings, a progress bar, and the output file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from agentrl.cli.settings import merge, parse_settings
from agentrl.errors import ConfigError, InfraError
from agentrl.trajectory import Trajectory
from agentrl.types import Limits

OnEpisode = Callable[[Trajectory], None]


@dataclass(frozen=True, slots=True)
class EpisodeConfig:
    """How an Env is configured and bounded outside of a training run."""

    env_config: Mapping[str, Any] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    engine_config: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(
        cls, pairs: Sequence[str], defaults: Mapping[str, Any] | None = None, *, with_engine: bool = False
    ) -> Self:
        """Read `--set` pairs over `defaults` ({"env_config", "limits"}). Raises ConfigError."""
        known = ("env_config", "limits", "engine_config") if with_engine else ("env_config", "limits")
        settings = merge(defaults or {}, parse_settings(pairs))
        for key, value in settings.items():
            if key not in known:
                keys = " or ".join(f"{name}.KEY=VALUE" for name in known)
                raise ConfigError(f"--set: unknown key {key!r}; here it is {keys}")
            if not isinstance(value, Mapping):
                raise ConfigError(f"--set {key}={value}: name a key of it, as in --set {key}.KEY=VALUE")
        limits = Limits.of(settings.get("limits", {}))
        return cls(settings.get("env_config", {}), limits, settings.get("engine_config", {}))


@contextmanager
def progress(what: str, total: int) -> Iterator[OnEpisode]:
    """A bar on stderr with the mean reward so far, if that is a terminal. It yields a function to call per episode."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (
        TextColumn(what),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("reward {task.fields[reward]:.3f}"),
        TimeRemainingColumn(),
    )
    rewards: list[float] = []
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=total, reward=0.0)

        def advance(trajectory: Trajectory) -> None:
            rewards.append(trajectory.reward or 0.0)
            bar.update(task, advance=1, reward=sum(rewards) / len(rewards))

        yield advance


def refuse_all_failed(trajectories: Sequence[Trajectory]) -> None:
    """Raises InfraError, with the first failure, if there is no episode that could be played."""
    failures = [trajectory.failure for trajectory in trajectories]
    if all(failures) and (first := failures[0]) is not None:
        raise InfraError(f"none of {len(failures)} episodes could be played; the first: {first.error}")


def check_out(out: Path | None, data: Path | None) -> None:
    """Raises ConfigError, before any work is done, if trajectories could not be written to `out`."""
    if out is None:
        return
    if out.is_dir():
        raise ConfigError(f"--out {out} is a folder; name a file, such as {out / 'trajectories.jsonl'}")
    if data is not None and out.resolve() == data.resolve():
        raise ConfigError(f"--out {out} is the data file itself; name another file")
    folder = next(parent for parent in out.resolve().parents if parent.exists())
    if not (folder.is_dir() and os.access(folder, os.W_OK)):
        raise ConfigError(f"--out {out}: {folder} cannot be written to; name another file")


def write_trajectories(out: Path, trajectories: Sequence[Trajectory]) -> None:
    """One a line, all or nothing."""
    from agentrl.train.files import write_atomically

    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, "".join(json.dumps(trajectory.to_json()) + "\n" for trajectory in trajectories))
