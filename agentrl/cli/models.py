"""A model by name, ready to sample from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl._util.loading import load_object
from agentrl.errors import ConfigError

if TYPE_CHECKING:
    from agentrl.engine.base import Engine
    from agentrl.render.base import Renderer
    from agentrl.train.config import TrainConfig


@dataclass(frozen=True, slots=True)
class OpenModel:
    """An engine that runs a model, with the model's renderer and tokenizer."""

    engine: Engine
    renderer: Renderer
    tokenizer: Any


@asynccontextmanager
async def open_model(
    name: str, device: str, engine: str = "local", engine_config: Mapping[str, Any] | None = None
) -> AsyncIterator[OpenModel]:
    """Certify the template of `name` and start an engine. Load the weights if the engine needs weights.

    Raises ConfigError.
    """
    from agentrl.engine.table import EngineParts, open_engine

    folder = weights_of(name)
    renderer, tokenizer = open_renderer(folder)
    parts = EngineParts(tokenizer, renderer, lambda: _load(folder, device))
    with needs_torch():
        opened = open_engine(engine, parts, engine_config or {})
    try:
        yield OpenModel(opened, renderer, tokenizer)
    finally:
        await opened.close()


def _load(folder: str, device: str) -> Any:
    from agentrl.models import load_model
    from agentrl.models.device import device_of

    return load_model(folder, device=device_of(device))


def open_renderer(name: str) -> tuple[Renderer, Any]:
    """The certified template of a model, and the tokenizer. Raises ConfigError."""
    from agentrl.models import load_tokenizer
    from agentrl.models.vision import load_vision
    from agentrl.render import load_renderer

    folder = weights_of(name)
    tokenizer = load_tokenizer(folder)
    return load_renderer(tokenizer, vision=load_vision(folder)), tokenizer


def weights_of(name: str) -> str:
    """The weights' folder if `name` is a run's folder or RUN/best, else `name`. Raises ConfigError for a run without
    weights."""
    if run_config(name) is None:
        return name
    folder: str = load_object("agentrl.train.run_folder:weights_of")(name)
    return folder


def check_model(name: str, engine: str, engine_config: Mapping[str, Any]) -> None:
    """Raises ConfigError for an impossible model or engine, before any slow import."""
    from agentrl.engine.table import check_engine
    from agentrl.models import check_name

    check_name(weights_of(name))
    check_engine(engine, engine_config)


def weights_digest(name: str) -> str:
    """A digest that changes whenever the files of a model's folder change; empty for a name on the Hub.

    Raises as `weights_of` does.
    """
    folder = Path(weights_of(name))
    if not folder.is_dir():
        return ""
    files = [(path.name, path.stat()) for path in sorted(folder.iterdir()) if path.is_file()]
    listed = [(file, stat.st_size, stat.st_mtime_ns) for file, stat in files]
    return hashlib.sha256(json.dumps(listed).encode()).hexdigest()[:12]


def run_config(name: str) -> TrainConfig | None:
    """The configuration of the run in folder `name`, or in the folder above RUN/best; None if `name` is no run's."""
    folders = [Path(name), Path(name).parent] if Path(name).name == "best" else [Path(name)]
    file = next((folder / "config.yaml" for folder in folders if (folder / "config.yaml").is_file()), None)
    if file is None:
        return None
    config: TrainConfig = load_object("agentrl.train.config:TrainConfig").from_yaml(file)
    return config


def import_slow(*, weights: bool) -> None:
    """Import the slow modules before an event loop runs: there, Ctrl-C would take effect only after the import.

    `weights`: also import the modules that run a model. A missing package is ignored here: the caller reports the
    package.
    """
    with suppress(ImportError):
        from transformers import AutoTokenizer  # noqa: F401
    if weights:
        with suppress(ImportError):
            import torch  # noqa: F401
            from transformers import AutoModelForCausalLM  # noqa: F401


@contextmanager
def needs_torch() -> Iterator[None]:
    """Within `with`, turn a failed import into a ConfigError that names the package to install."""
    try:
        yield
    except ModuleNotFoundError as exc:
        if exc.name not in ("torch", "safetensors", "accelerate"):
            raise
        raise ConfigError(f"{exc.name} is not installed: pip install 'agentrl-sdk[train]'") from exc
