"""`agentrl train`: the embedded trainer, configured by a file, by flags, or by both."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentrl._util.yaml_files import read_yaml
from agentrl.cli._errors import one_line_errors, only_the_document
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
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the outcome as JSON on stdout, and progress on stderr.")
    ] = False,
) -> None:
    """Train a model in an environment by reinforcement learning.

    agentrl train my_env.py:MyEnv --data tasks.jsonl --out runs/first

    agentrl train --resume --out runs/first

    Ctrl-C and SIGTERM write a checkpoint first. Exit codes: 0 done, 1 a bug in the Env or a full disk,
    2 cannot start, 3 stopped by a canary, 130 after Ctrl-C, 143 after SIGTERM. --json prints a document in all these
    cases.
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

    run = _Run(out, resumes=resume or resume_from is not None)
    with one_line_errors(run.how_to_resume, run.document if as_json else None):
        from agentrl.train.preflight import check_inputs

        with only_the_document(as_json):
            train_config = build_config(config, merge(overrides, parse_settings(settings or ())), resume=run.resumes)
            run.is_in(train_config.out)
            check_inputs(train_config, resume=run.resumes)
            with needs_torch():
                from agentrl.train import train as run_to_the_end
            run_to_the_end(train_config, resume=resume_from or run.resumes, accept_changed_data=accept_changed_data)
    if as_json:
        typer.echo(json.dumps(run.document(None, 0)))
    else:
        _say_what_next(train_config)


class _Run:
    """The folder of a command's run, and whether this command began or resumed the run that the folder holds."""

    def __init__(self, folder: Path | None, *, resumes: bool) -> None:
        self.folder, self.resumes, self._is_known = folder, resumes, False

    def is_in(self, folder: Path) -> None:
        """Note the folder before the command changes it."""
        self.folder, self._is_known = folder, self.resumes or not (folder / "config.yaml").is_file()

    def how_to_resume(self) -> str:
        is_started = self.folder is not None and (self.folder / "config.yaml").is_file()
        resumed = f"resume with: agentrl train --resume --out {quote(str(self.folder))}"
        return resumed if is_started else "run the command again"

    def document(self, error: str | None, code: int) -> Mapping[str, Any]:
        """The document of `--json`. A folder with the run of another command is not read."""
        from agentrl.train.outcome import outcome

        folder = self.folder if self._is_known else None
        return outcome(folder, exit_code=code, error=error)


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
