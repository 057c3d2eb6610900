"""What a run configures an Env with: `env_config`, checked by the annotation of `config`."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping
from functools import cache
from typing import Any, get_type_hints

from pydantic import BaseModel, PydanticUserError, TypeAdapter, ValidationError

from agentrl.errors import ConfigError
from agentrl.types import JSON


def validated_config(cls: type, config: BaseModel | Mapping[str, JSON] | None) -> Any:
    """`config` as the class annotates it: a pydantic model, a dataclass, a TypedDict, or a mapping as it is.

    Raises ConfigError naming the keys that are wrong, and any key where the class declares no `config`.
    """
    hint = _hint(cls)
    if hint is None:
        if config:
            keys = ", ".join(map(repr, config)) if isinstance(config, Mapping) else repr(config)
            raise ConfigError(
                f"env_config of {cls.__name__}: {keys} given, but the class takes no configuration; "
                "annotate one: `config: MyConfig` (a pydantic model) or `config: dict[str, Any]`"
            )
        return {}
    if hint is Any or (isinstance(hint, type) and isinstance(config, hint)):
        return {} if config is None else config
    if isinstance(hint, type) and issubclass(hint, BaseModel) and isinstance(config, Mapping):
        _refuse_unknown(cls, hint, config)
    try:
        return _adapter(cls).validate_python({} if config is None else config)
    except PydanticUserError as exc:
        raise ConfigError(
            f"{cls.__name__}.config is annotated {hint!r}, which pydantic cannot check: {exc.message}"
        ) from exc
    except ValidationError as exc:
        problems = "; ".join(
            f"{'.'.join(map(str, e['loc'])) or 'env_config'}: {e['msg'].lower()}" for e in exc.errors()
        )
        raise ConfigError(f"env_config of {cls.__name__}: {problems}{_known(hint)}") from exc


@cache
def _hint(cls: type) -> Any:
    """The annotation of `config`, and of nothing else: others may name what only a type checker imports."""
    for base in cls.__mro__:
        annotations = inspect.get_annotations(base)
        if base.__module__ == "agentrl.env" or "config" not in annotations:
            continue
        alone = type(
            base.__name__, (), {"__annotations__": {"config": annotations["config"]}, "__module__": base.__module__}
        )
        try:
            return get_type_hints(alone, localns=dict(vars(base)), include_extras=True)["config"]
        except NameError as exc:
            raise ConfigError(
                f"{cls.__name__}.config: {exc}; import it at module level, not under TYPE_CHECKING"
            ) from exc
    return None


@cache
def _adapter(cls: type) -> TypeAdapter[Any]:
    return TypeAdapter(_hint(cls))


def _refuse_unknown(cls: type, model: type[BaseModel], config: Mapping[str, JSON]) -> None:
    """Where the model does not say what becomes of other keys, pydantic would leave them out without a word."""
    if model.model_config.get("extra") is not None:
        return
    known = {name for field, info in model.model_fields.items() for name in (field, info.alias, info.validation_alias)}
    unknown = [key for key in config if key not in known]
    if unknown and all(name is None or isinstance(name, str) for name in known):
        close = difflib.get_close_matches(unknown[0], [name for name in known if isinstance(name, str)], 1)
        meant = f"; did you mean {close[0]!r}?" if close else ""
        raise ConfigError(
            f"env_config of {cls.__name__}: {', '.join(unknown)}: there is no such key{meant}{_known(model)}"
        )


def _known(hint: Any) -> str:
    if not (isinstance(hint, type) and issubclass(hint, BaseModel)):
        return ""
    return f" (known keys: {', '.join(hint.model_fields)})"
