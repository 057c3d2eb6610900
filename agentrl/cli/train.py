"""`agentrl train`: the embedded trainer, configured by a file, by flags, or by both."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentrl._util.yaml_files import read_yaml
from agentrl.cli._errors import one_line_errors
from agentrl.cli.models import needs_torch
from agentrl.cli.options import DeviceName, Episodes
from agentrl.cli.settings import merge, parse_settings
from agentrl.errors import ConfigError

if TYPE_CHECKING:
    from agentrl.train.config import TrainConfig

_REQUIRED = {"env": "ENV", "out": "--out"}


def train(
    env: Annotated[
        str | None,
        typer.Argument(
            metavar="ENV", help="The environment: my_env.py:MyEnv, package.module:MyEnv, or a name (agentrl envs)."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="tiny, smollm2-135m, a folder, or a Hub name: Qwen/Qwen3-0.6B.", show_default="tiny"),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Tasks to train on, if the environment makes none: a file, or hub:org/name:config@split."),
    ] = None,
    episodes: Episodes = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder: new, or an old one with --resume.")] = None,
    eval_data: Annotated[Path | None, typer.Option(help="Held-out tasks.")] = None,
    warm_start: Annotated[
        Path | None, typer.Option(help="What to imitate first: episodes of agentrl play, or chat.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Steps of reinforcement learning.", show_default="100")] = None,
    seed: Annotated[int | None, typer.Option(help="Same seed, same run.", show_default="0")] = None,
    device: Annotated[DeviceName | None, typer.Option(help="Where to train.", show_default="auto")] = None,
    config: Annotated[
        Path | None, typer.Option(help="YAML with any keys of the configuration; flags override it.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any other key, such as limits.turns=4.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the run in --out.")] = False,
    resume_from: Annotated[
        str | None,
        typer.Option(metavar="best|STEP", help="Resume at this checkpoint, and remove the steps after it."),
    ] = None,
    accept_changed_data: Annotated[
        bool, typer.Option("--accept-changed-data", help="Resume although tasks have changed.")
    ] = False,
) -> None:
    """Train a model in an environment by reinforcement learning.

    agentrl train my_env.py:MyEnv --data tasks.jsonl --out runs/first

    agentrl train --resume --out runs/first

    Ctrl-C and SIGTERM write a checkpoint first. Exit codes: 0 done, 1 a bug in the Env or a full disk,
    2 cannot start, 3 stopped by a canary, 130 after Ctrl-C, 143 after SIGTERM.
    """
    flags = {
        "env": env,
        "model": model,
        "data": data,
        "episodes": episodes,
        "out": out,
        "eval_data": eval_data,
        "warm_start": warm_start and {"demonstrations": warm_start},
        "steps": steps,
        "seed": seed,
        "device": device,
    }
    overrides = {key: value for key, value in flags.items() if value is not None}

    folder = out

    def how_to_go_on() -> str:
        is_started = folder is not None and (folder / "config.yaml").is_file()
        return (
            f"resume with: agentrl train --resume --out {quote(str(folder))}" if is_started else "run the command again"
        )

    with one_line_errors(how_to_go_on):
        from agentrl.train.preflight import check_inputs

        resume = resume or resume_from is not None
        train_config = build_config(config, merge(overrides, parse_settings(settings or ())), resume=resume)
        folder = train_config.out
        check_inputs(train_config, resume=resume)
        with needs_torch():
            from agentrl.train import train as run
        run(train_config, resume=resume_from or resume, accept_changed_data=accept_changed_data)
    _say_what_next(train_config)


def build_config(file: Path | None, flags: dict[str, Any], *, resume: bool) -> TrainConfig:
    """The configuration in `file`, or the run's own when resuming, overridden by `flags`. Raises ConfigError."""
    from agentrl.train.config import TrainConfig

    if resume and file is None:
        if "out" not in flags:
            raise ConfigError("--resume: name the run's folder with --out")
        file = Path(flags["out"]) / "config.yaml"
        if not file.is_file():
            raise ConfigError(f"--resume: {flags['out']} holds no run; leave --resume out to begin one")
    values = merge(read_yaml(file, "--config") if file else {}, flags)
    missing = [flag for key, flag in _REQUIRED.items() if key not in values]
    if missing and values.keys() <= TrainConfig.model_fields.keys():  # else one of them may be misspelt
        raise ConfigError(f"missing {', '.join(missing)}: give what is missing, or --config FILE that has it")
    return TrainConfig.parse(f"--config {file}" if file else "training configuration", values)


def _say_what_next(config: TrainConfig) -> None:
    data = config.eval_data or config.data
    on, out = f" --data {quote(str(data))}" if isinstance(data, Path) else "", quote(str(config.out))
    typer.echo(f"one episode          agentrl show {out}")
    typer.echo(f"evaluate             agentrl eval {quote(config.env)} --model {out}{on}")
    typer.echo(f"serve                agentrl serve --model {out}")
    if config.lora is not None:
        typer.echo(f"one model            agentrl merge {out} {quote(f'{config.out}-merged')}")
