"""Options that several commands take, so that names and help texts are the same everywhere."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeAlias

import typer


class DeviceName(StrEnum):
    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"
    MPS = "mps"


EnvPath: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="ENV", help="The environment: my_env.py:MyEnv, package.module:MyEnv, or a name (agentrl envs)."
    ),
]
ModelName: TypeAlias = Annotated[
    str,
    typer.Option(help="tiny, smollm2-135m, a run's or model's folder, or a Hub name: Qwen/Qwen3-0.6B."),
]
Data: TypeAlias = Annotated[Path, typer.Option(help="Tasks, one JSON object a line.")]
MaybeData: TypeAlias = Annotated[
    Path | None,
    typer.Option("--data", help="Tasks, if the environment makes none: a file (JSONL), or hub:org/name:config@split."),
]
Episodes: TypeAlias = Annotated[
    int | None,
    typer.Option(
        help="Without --data: the first N tasks that the environment makes. Default: all of a list; of a generator, "
        "1000 to train on or 200 held out.",
        min=1,
    ),
]
Limit: TypeAlias = Annotated[int | None, typer.Option(help="Only the first N tasks.", min=1)]
Out: TypeAlias = Annotated[Path | None, typer.Option(help="Write the trajectories here, one a line.")]
Device: TypeAlias = Annotated[DeviceName, typer.Option(help="Where the model runs; auto takes a GPU if there is one.")]
EngineName: TypeAlias = Annotated[
    str,
    typer.Option(
        "--engine",
        help="local, sglang, scripted, or the path of your own; --set engine_config.KEY=VALUE configures it "
        "(of sglang: url). Any but local takes only tokenizer and chat template from --model.",
    ),
]
EpisodeSettings: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="env_config.KEY=VALUE, limits.KEY=VALUE, or what else the guide names; may be repeated.",
    ),
]
