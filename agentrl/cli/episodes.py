"""Helpers of the commands that play episodes: settings, a progress bar, and the output file."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast, get_args

import typer
from pydantic import ValidationError

from agentrl._util.config_errors import problems, unknown
from agentrl.cli.settings import merge, parse_settings
from agentrl.env.env import Env
from agentrl.episode.config import load_reward
from agentrl.episode.gateway_config import GatewayConfig
from agentrl.episode.options import EpisodeOptions, RewardFn, SpecialTokens, Thinking
from agentrl.errors import ConfigError, InfraError
from agentrl.monitor.earned import Earned
from agentrl.rollout.data.tasks import Columns
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import Limits

if TYPE_CHECKING:
    from rich.console import Console

_EVERY_S = 10.0

OnEpisode = Callable[[Trajectory], None]


@dataclass(frozen=True, slots=True)
class PlayConfig:
    """How an Env is configured and limited outside of a training run."""

    env_config: Mapping[str, Any] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    engine_config: Mapping[str, Any] = field(default_factory=dict)
    reward: str | None = None
    """The path of a function that scores an episode in place of the Env."""
    special_tokens: SpecialTokens = "keep"
    """How special tokens in texts are treated; see `EpisodeOptions`."""
    opponents: Sequence[str] = ("policy",)
    """Who has the other seats of an Env with seats; see `TrainConfig.opponents`. policy is the player itself."""
    workers: int = 0
    """See `TrainConfig.workers`."""
    columns: Columns | None = None
    """See `TrainConfig.columns`."""
    gateway: GatewayConfig = GatewayConfig()  # noqa: RUF009 - immutable
    """See `TrainConfig.gateway`."""

    @classmethod
    def parse(
        cls,
        pairs: Sequence[str],
        defaults: Mapping[str, Any] | None = None,
        *,
        with_engine: bool = False,
        with_reward: bool = False,
        with_workers: bool = False,
    ) -> Self:
        """Read `--set` pairs over `defaults` ({"env_config", "limits", "reward"}). Raises ConfigError."""
        keys: dict[str, Any] = {
            "env_config": None,
            "limits": Limits,
            **({"engine_config": None} if with_engine else {}),
        }
        keys |= {
            "special_tokens": None,
            "opponents": None,
            "columns": Columns,
            **({"reward": None} if with_reward else {}),
        }
        keys |= {"workers": None, "gateway": None} if with_workers else {}
        settings = merge(defaults or {}, parse_settings(pairs))
        if strangers := [key for key in settings if key not in keys]:
            raise ConfigError(f"--set: {unknown(strangers[:1], keys)} (as in --set limits.turns=4)")
        return cls(
            env_config=_section(settings, "env_config"),
            limits=Limits.of(_section(settings, "limits")),
            engine_config=_section(settings, "engine_config"),
            reward=_reward(settings.get("reward")),
            special_tokens=_special_tokens(settings.get("special_tokens", "keep")),
            opponents=_opponents(settings.get("opponents", ["policy"])),
            workers=_workers(settings.get("workers", 0)),
            columns=_columns(settings),
            gateway=_gateway(settings.get("gateway", {})),
        )

    def options(self, thinking: Thinking = "keep") -> EpisodeOptions:
        """The options of episodes that are played with these settings."""
        return EpisodeOptions(
            limits=self.limits, thinking=thinking, special_tokens=self.special_tokens, gateway=self.gateway
        )

    def check_opponents(self, cls: type[Env]) -> None:
        """Raises ConfigError for opponents of an Env without seats."""
        if not cls.seats and tuple(self.opponents) != ("policy",):
            raise ConfigError(f"--set opponents: {cls.__name__} has no seats; leave it out")

    def reward_function(self) -> RewardFn | None:
        """The function at the path `reward`; None without a path. Raises ConfigError."""
        return load_reward(self.reward, "--set reward=")


def _section(settings: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    values = settings.get(key, {})
    if not isinstance(values, Mapping):
        raise ConfigError(f"--set {key}={values}: name a key of it, as in --set {key}.KEY=VALUE")
    return values


def _reward(value: Any) -> str | None:
    if not isinstance(value, str | None):
        raise ConfigError(f"--set reward={value}: name a function, as in --set reward=my_reward.py:function")
    return value


def _special_tokens(value: Any) -> SpecialTokens:
    for name in get_args(SpecialTokens):
        if value == name:
            return cast(SpecialTokens, name)
    raise ConfigError(f"--set special_tokens={value}: it is one of {', '.join(get_args(SpecialTokens))}")


def _opponents(value: Any) -> Sequence[str]:
    if not isinstance(value, list) or not value or not all(isinstance(name, str) for name in value):
        raise ConfigError(f"--set opponents={value}: give a list, as in --set opponents=[players.py:function]")
    return tuple(value)


def _workers(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ConfigError(f"--set workers={value}: give a number of processes, 0 or more")
    return value


def _gateway(values: Any) -> GatewayConfig:
    """The gateway's settings. Raises ConfigError with a line that names each wrong key."""
    try:
        return GatewayConfig.model_validate(values)
    except ValidationError as exc:
        raise ConfigError(f"--set gateway: {problems(exc, GatewayConfig)}") from exc


def _columns(settings: Mapping[str, Any]) -> Columns | None:
    names = _section(settings, "columns")
    if strangers := names.keys() - {field.name for field in fields(Columns)}:
        raise ConfigError(f"--set columns: {unknown(sorted(strangers)[:1], Columns)}")
    return Columns(**names) if names else None


@contextmanager
def progress(title: str, total: int) -> Iterator[OnEpisode]:
    """Show progress and the mean reward so far on stderr: a bar, or without a terminal a line every ten seconds.

    Yields the function to call after each episode.
    """
    from rich.console import Console

    console = Console(stderr=True)
    with _bar(console, title, total) if console.is_terminal else _lines(total) as advance:
        yield advance


@contextmanager
def _lines(total: int) -> Iterator[OnEpisode]:
    """Progress as lines. A thread prints them, so that progress appears even while no episode finishes."""
    earned, counting, ended = Earned(), threading.Lock(), threading.Event()

    def tell() -> None:
        while not ended.wait(_EVERY_S):
            with counting:
                mean, count = earned.with_failed(), earned.count
            typer.echo(f"{count}/{total} episodes" + (f", reward {mean}" if count else ""), err=True)

    def advance(trajectory: Trajectory) -> None:
        with counting:
            earned.add(trajectory)

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield advance
    finally:
        ended.set()
        thread.join()


@contextmanager
def _bar(console: Console, title: str, total: int) -> Iterator[OnEpisode]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn(title),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("reward {task.fields[reward]}"),
        TimeRemainingColumn(),
    )
    earned = Earned()
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=total, reward="none")

        def advance(trajectory: Trajectory) -> None:
            earned.add(trajectory)
            bar.update(task, advance=1, reward=earned.with_failed())

        yield advance


def warn_unscored(count: int) -> None:
    """Print advice on stderr if no episode was rewarded."""
    if count:
        remedy = "write score(trajectory), or give a reward in step (reward=0.0 for a loss)"
        typer.echo(f"warning: none of {count} episodes was rewarded; {remedy}", err=True)


def refuse_all_failed(trajectories: Sequence[Trajectory]) -> None:
    """Raises InfraError, with the reason of the first failure, if no episode could be played."""
    failures = [trajectory.failure for trajectory in trajectories]
    if all(failures) and (first := failures[0]) is not None:
        raise InfraError(f"none of {len(failures)} episodes could be played; the first: {first.error}")


def check_out(out: Path | None, data: Path | None, flag: str = "--out") -> None:
    """Raises ConfigError, before any work is done, if trajectories could not be written to `out`."""
    if out is None:
        return
    if out.is_dir():
        raise ConfigError(f"{flag} {out} is a folder; name a file, such as {out / 'trajectories.jsonl'}")
    if data is not None and out.resolve() == data.resolve():
        raise ConfigError(f"{flag} {out} is the data file itself; name another file")
    folder = next(parent for parent in out.resolve().parents if parent.exists())
    if not (folder.is_dir() and os.access(folder, os.W_OK)):
        raise ConfigError(f"{flag} {out}: {folder} cannot be written to; name another file")


def held(out: Path) -> int:
    """The number of episodes in a file: the count of lines that are not empty."""
    return sum(1 for line in out.read_bytes().split(b"\n") if line.strip()) if out.is_file() else 0


def refuse_finished(out: Path | None) -> None:
    """Raises ConfigError if `out` has episodes: a replay would cost money, or a person's time."""
    if out is not None and (count := held(out)):
        raise ConfigError(f"{out} holds {count} episodes; name another file, or remove it")


def write_trajectories(out: Path, trajectories: Sequence[Trajectory]) -> None:
    """Write the trajectories as JSON, each on a line. An interrupted write leaves the old file as it was."""
    from agentrl._util.files import write_atomically

    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, "".join(json.dumps(trajectory.to_json()) + "\n" for trajectory in trajectories))
