"""A model by its name, ready to sample from."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.errors import ConfigError

if TYPE_CHECKING:
    from agentrl.engine.local import LocalEngine
    from agentrl.render.base import Renderer
    from agentrl.train.config import TrainConfig


@dataclass(frozen=True, slots=True)
class OpenModel:
    """A model in this process, with what its text needs."""

    engine: LocalEngine
    renderer: Renderer
    tokenizer: Any


@asynccontextmanager
async def open_model(name: str, device: str) -> AsyncIterator[OpenModel]:
    """Load `name`, certify its template, and start an engine. Raises ConfigError."""
    folder = weights_of(name)
    renderer, tokenizer = open_renderer(folder)
    with needs_torch():
        import torch

        from agentrl.engine.local import LocalEngine
        from agentrl.models import load_model
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda: torch sees no GPU; use cpu or auto")
    engine = LocalEngine(load_model(folder, device=device), tokenizer)
    try:
        yield OpenModel(engine, renderer, tokenizer)
    finally:
        await engine.close()


def open_renderer(name: str) -> tuple[Renderer, Any]:
    """The certified template of a model, and its tokenizer. Raises ConfigError."""
    from agentrl.models import load_tokenizer
    from agentrl.render import load_renderer

    tokenizer = load_tokenizer(weights_of(name))
    return load_renderer(tokenizer), tokenizer


def weights_of(name: str) -> str:
    """The weights' folder if `name` is a run's folder, else `name`. Raises ConfigError for a run without weights."""
    from agentrl.train.run_folder import model_folder

    return str(model_folder(name)) if run_config(name) else name


def run_config(name: str) -> TrainConfig | None:
    """The configuration of the run in folder `name`; None where that is no run's folder."""
    from agentrl.train.config import TrainConfig

    file = Path(name) / "config.yaml"
    return TrainConfig.from_yaml(file) if file.is_file() else None


@contextmanager
def needs_torch() -> Iterator[None]:
    """Say how to get what the embedded engine and trainer import. Raises ConfigError."""
    try:
        yield
    except ModuleNotFoundError as exc:
        if exc.name not in ("torch", "safetensors", "accelerate"):
            raise
        raise ConfigError(f"{exc.name} is not installed; in agentrl's folder: pip install -e '.[train]'") from exc
