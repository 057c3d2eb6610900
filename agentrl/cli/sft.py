"""`agentrl sft`: learn from recorded chat alone, as in the warm start of `agentrl train`."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from agentrl.cli._errors import one_line_errors
from agentrl.cli.models import needs_torch
from agentrl.cli.options import Device, DeviceName
from agentrl.cli.settings import merge, parse_settings


def sft(
    data: Annotated[
        Path, typer.Argument(metavar="CHAT", help="Chat, or episodes of agentrl play: JSONL, one a line, or Parquet.")
    ],
    model: Annotated[str, typer.Option(help="smollm2-135m, a folder, a run's folder, or a Hub name.")],
    out: Annotated[Path, typer.Option(help="The run's folder; it must be new.")],
    epochs: Annotated[
        float | None,
        typer.Option(help="How often each row is seen; default 3. Or give --set warm_start.steps=N.", min=0.0),
    ] = None,
    seed: Annotated[int, typer.Option(help="Same seed, same run.")] = 0,
    device: Device = DeviceName.AUTO,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A key of the run, such as warm_start.batch_size=8."),
    ] = None,
) -> None:
    """Teach a model recorded chat: supervised learning, of the assistant's own tokens.

    agentrl sft chat.jsonl --model Qwen/Qwen3-0.6B --out runs/taught --set lora.rank=16

    A row is {"messages": [...], "tools": [...]}, as OpenAI's API takes them. To resume after an interruption:
    agentrl train --resume --out runs/taught
    """
    flags = {"model": model, "out": out, "seed": seed, "device": device.value}

    def how_to_go_on() -> str:
        is_started = (out / "config.yaml").is_file()
        return f"resume with: agentrl train --resume --out {out}" if is_started else "run the command again"

    with one_line_errors(how_to_go_on):
        from agentrl.train.preflight import check_inputs
        from agentrl.train.sft import sft_config

        config = sft_config(data, epochs, merge(flags, parse_settings(settings or ())))
        check_inputs(config, resume=False)
        with needs_torch():
            from agentrl.train import train as run
        run(config)
    typer.echo(f"view      agentrl view {quote(str(out))}")
    typer.echo(f"serve     agentrl serve --model {out}")
    typer.echo(f"train on  agentrl train ENV --model {out}")
