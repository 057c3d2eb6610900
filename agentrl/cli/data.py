"""`agentrl data`: write rows for training from other formats, or from an Env that makes its tasks."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from agentrl._util.loading import load_object
from agentrl.cli._errors import one_line_errors
from agentrl.cli.episodes import PlayConfig
from agentrl.cli.options import EnvPath, Episodes, EpisodeSettings
from agentrl.env.factory import EnvFactory
from agentrl.errors import ConfigError

data = typer.Typer(help="Write rows for training: from other formats, or an Env's own tasks.", no_args_is_help=True)


class SplitName(StrEnum):
    TRAIN = "train"
    EVAL = "eval"


class Form(StrEnum):
    TAGS = "tags"
    TOOLS = "tools"


@data.command("tasks")
def tasks(
    env: EnvPath,
    out: Annotated[Path, typer.Option(help="The file to write, such as tasks.jsonl.")],
    episodes: Episodes = None,
    split: Annotated[SplitName, typer.Option(help="Tasks to train on, or the held-out ones.")] = SplitName.TRAIN,
    settings: EpisodeSettings = None,
) -> None:
    """Write the tasks that an environment makes by itself as a data file, for slime or to look at."""
    from agentrl._util.files import write_atomically
    from agentrl.rollout import tasks_of
    from agentrl.rollout.data.own_tasks import row_of

    with one_line_errors():
        if out.exists():
            raise ConfigError(f"--out {out} exists; name a new file")
        config = PlayConfig.parse(settings or ())
        envs = EnvFactory(env, config.env_config)
        rows = [row_of(task) for task in tasks_of(envs, None, split.value, episodes=episodes)]
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
        typer.echo(f"{out}  {len(rows)} rows")


@data.command("search-r1")
def search_r1(
    qa: Annotated[Path, typer.Argument(help='JSONL of {"question", "golden_answers": [...], "source"?}.')],
    out: Annotated[Path, typer.Option(help="The folder for train.jsonl and test.jsonl.")],
    test_share: Annotated[
        float, typer.Option(help="Share of each source's questions to hold out.", min=0, max=1)
    ] = 0.1,
    seed: Annotated[int, typer.Option(help="Chooses the questions that are held out.")] = 0,
    form: Annotated[Form, typer.Option(help="The prompt: the paper's tags, or native tool calls.")] = Form.TAGS,
) -> None:
    """Write rows in the format of Search-R1's data, with the paper's prompt.

    The same questions and seed give the same split, whatever their order in the file.
    """
    with one_line_errors():
        if out.exists() and not out.is_dir():
            raise ConfigError(f"--out {out} is a file; name a folder")
        write = load_object("agentrl_envs.search_r1.rows:write_rows")
        for file in write(qa, out, test_share=test_share, seed=seed, form=form.value):
            rows = file.read_bytes().count(b"\n")
            typer.echo(f"{file}  {rows} rows")
