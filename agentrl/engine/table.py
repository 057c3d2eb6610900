"""Engines by name: `local`, `sglang`, `scripted`, or the path of your own engine."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl._util.loading import load_object
from agentrl.engine.base import Engine
from agentrl.errors import ConfigError, did_you_mean, unknown_key

if TYPE_CHECKING:
    from agentrl.engine.scripted import ScriptedEngine
    from agentrl.render.base import Renderer

ENGINES: Mapping[str, str] = {
    "local": "agentrl.engine.local:LocalEngine",
    "sglang": "agentrl.engine.sglang:SGLangEngine",
    "scripted": "agentrl.engine.table:scripted_engine",
}


_HINTS = {("sglang", "url"): "; name a server that runs: --set engine_config.url=http://127.0.0.1:30000"}
"""(engine, key) -> the advice in the error about a missing key."""
_PARTS = ("model", "tokenizer", "renderer", "training", "vision")
"""Names of parameters of an engine that are not keys of `engine_config`."""
_TRAINED: Mapping[str, str] = {"sglang": "agentrl.engine.sglang.training.trained:TrainedSGLang"}
"""Name -> the path of the engine class in training, for engines with a different class in training."""
_OWN_WEIGHTS: Mapping[str, str] = {"local": "agentrl.engine.local.process:ProcessEngine"}
"""Name -> the path of the engine class, for engines with a different class while the trainer learns in parallel."""


@dataclass(frozen=True, slots=True)
class TrainingParts:
    """The facts about a run that an engine in training needs."""

    folder: Path
    """The run folder. The folder need not exist before the first use of the engine."""
    device: str
    """The device of the trainer: cpu or cuda."""
    dtype: str
    """The type of the weights in training, by torch's name."""
    say: Callable[[str], None]
    """A function that shows the user a line about slow work."""
    own_weights: bool = False
    """Whether the engine plays while the trainer learns. Such an engine needs separate weights, and does not sleep."""


@dataclass(frozen=True, slots=True)
class EngineParts:
    """The objects that an engine may need. An engine gets those objects whose names are among its parameters."""

    tokenizer: Any
    renderer: Renderer
    model: Callable[[], Any]
    """A function that loads the model, called only for an engine with a parameter `model`."""
    max_batch: int | None = None
    """The most sequences in parallel; None if unknown."""
    training: TrainingParts | None = None
    """The facts about the run, for an engine that will get the weights of a training run. Otherwise None."""

    @property
    def vision(self) -> Any:
        """The image side of the model. None for a model of text only."""
        return getattr(self.renderer, "vision", None)


def open_engine(name: str, parts: EngineParts, config: Mapping[str, Any]) -> Engine:
    """Create the engine `name`: a name of ENGINES, or the path of a class or function that returns an engine.

    The class or function gets the keys of `config` as arguments, and those fields of `parts` whose names are among its
    parameters. Raises ConfigError for an unknown name, an unknown key or a missing key.
    """
    paths = dict(ENGINES)
    if parts.training is not None:
        paths |= {**_TRAINED, **(_OWN_WEIGHTS if parts.training.own_weights else {})}
    make = _maker(name, paths)
    parameters = inspect.signature(make).parameters
    arguments = dict(config)
    for part in ("tokenizer", "renderer", "max_batch", "training", "vision"):
        if part in parameters and getattr(parts, part) is not None:
            arguments.setdefault(part, getattr(parts, part))
    _check_keys(name, config, arguments, parameters)
    if "model" in parameters:
        arguments.setdefault("model", parts.model())
    engine: Engine = make(**arguments)
    return engine


def engine_keys(name: str, *, training: bool) -> set[str]:
    """The keys of `engine_config` for an engine of ENGINES."""
    parameters = inspect.signature(_maker(name, {**ENGINES, **_TRAINED} if training else ENGINES)).parameters
    return set(parameters) - set(_PARTS)


def check_engine(name: str, config: Mapping[str, Any] | None = None) -> None:
    """Raises ConfigError for an unknown name, and for wrong keys of `config`.

    `local`, and named engines without a `config`, are not checked: the import would take seconds.
    """
    if name not in ENGINES or (config is not None and name != "local"):
        parameters = inspect.signature(_maker(name, ENGINES)).parameters
        if config is not None:
            _check_keys(name, config, {"max_batch": None, **config}, parameters)


def _maker(name: str, paths: Mapping[str, str]) -> Callable[..., Any]:
    if name not in paths and not set(name) & {".", ":"}:
        use = "; use {} or a path such as my_engine.py:MyEngine"
        raise ConfigError(f"unknown engine {name!r}{did_you_mean(name, paths, use)}")
    make = load_object(paths.get(name, name))
    if not callable(make):
        raise ConfigError(f"engine {name}: {make!r} is neither a class nor a function")
    return make  # type: ignore[no-any-return]


def _check_keys(
    name: str, config: Mapping[str, Any], arguments: Mapping[str, Any], parameters: Mapping[str, inspect.Parameter]
) -> None:
    """Raises ConfigError for an unknown key of `config`, and for a parameter that is missing in `arguments`."""
    keys = [key for key in parameters if key not in _PARTS]
    if unknown := [key for key in config if key not in parameters or key == "training"]:
        raise ConfigError(f"engine {name}: {unknown_key(f'engine_config.{unknown[0]}', keys)}")
    for key in keys:
        if key not in arguments and parameters[key].default is inspect.Parameter.empty:
            hint = _HINTS.get((name, key), "")
            raise ConfigError(f"engine {name}: engine_config.{key} is missing{hint}")


def scripted_engine(
    turns: str | Sequence[Any], renderer: Renderer, seconds: float = 0.0, context_length: int = 1 << 20
) -> ScriptedEngine:
    """Create a ScriptedEngine. `turns` may be the path of a function of the input ids."""
    from agentrl.engine.scripted import ScriptedEngine

    script = load_object(turns) if isinstance(turns, str) else turns
    return ScriptedEngine(script, renderer, seconds=seconds, context_length=context_length)
