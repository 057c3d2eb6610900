"""`agentrl merge`: the adapter of a LoRA run and its base model become one model."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from agentrl.cli._errors import one_line_errors
from agentrl.cli.models import needs_torch, weights_of
from agentrl.errors import ConfigError


class DtypeName(StrEnum):
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


def merge(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a LoRA run, or of an adapter.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder to write: new or empty.")],
    dtype: Annotated[
        DtypeName,
        typer.Option(
            help="Type of the weights written. bfloat16 halves them, and rounds away a part of what it learned."
        ),
    ] = DtypeName.FLOAT32,
) -> None:
    """Add what a LoRA run learned to the weights of its model, and write a Hugging Face folder.

    agentrl merge runs/first models/first

    The sum is made in float32: 4 bytes of memory a parameter. eval, serve, play and show take the run's folder as it
    is; SGLang takes the adapter in RUN/model.
    """
    with one_line_errors():
        from agentrl.models import is_adapter

        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise ConfigError(f"{out} is not an empty folder; choose another folder")
        folder = Path(weights_of(str(run)))
        if not is_adapter(folder):
            raise ConfigError(f"{folder} holds no LoRA adapter: there is nothing to merge")
        with needs_torch():
            _merge(folder, out, dtype.value)
    typer.echo(f"evaluate  agentrl eval ENV --model {out} --data DATA")
    typer.echo(f"serve     agentrl serve --model {out}")


def _merge(folder: Path, out: Path, dtype: str) -> None:
    import torch

    from agentrl._util.files import write_folder
    from agentrl.models import load_model, load_tokenizer, merge_adapter, save_model, set_ends
    from agentrl.models.vision import vision_of
    from agentrl.render import load_renderer
    from agentrl.render.ends import turn_ends

    tokenizer = load_tokenizer(str(folder))
    model = merge_adapter(load_model(str(folder))).to(getattr(torch, dtype))
    vision = vision_of(model, str(folder))
    set_ends(model, turn_ends(load_renderer(tokenizer, vision=vision)))
    write_folder(out, lambda path: save_model(model, tokenizer, path, vision))
