"""Check `env_config`, the configuration of an Env, against the class's annotation of `config`."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from functools import cache
from typing import Any, get_type_hints

from pydantic import BaseModel, PydanticUserError, TypeAdapter, ValidationError
from typing_extensions import is_typeddict

from agentrl._util.config_errors import keys_of, problems, unknown
from agentrl.errors import ConfigError
from agentrl.plain import copied
from agentrl.types import JSON


def validated_config(cls: type, config: BaseModel | Mapping[str, JSON] | None) -> Any:
    """`config` as its annotated type: a pydantic model, a dataclass, a TypedDict, or an unchanged mapping.

    Raises ConfigError, which names the wrong keys. If the class declares no `config`, every key is wrong.
    """
    hint = _hint(cls)
    if hint is None:
        return _none_given(cls, config)
    if hint is Any or _is_instance(config, hint):
        return {} if config is None else config
    if isinstance(config, Mapping):
        _refuse_unknown(cls, hint, config)
    try:
        return _adapter(cls).validate_python({} if config is None else config)
    except PydanticUserError as exc:
        raise ConfigError(
            f"{cls.__name__}.config is annotated {hint!r}, which pydantic cannot check: {exc.message}"
        ) from exc
    except ValidationError as exc:
        raise ConfigError(f"env_config of {cls.__name__}: {problems(exc, hint, 'env_config')}") from exc


def own_config(cls: type, config: Any) -> Any:
    """A copy of the configuration for one Env, so that an episode does not see another episode's changes. All copies
    share the caches inside a pydantic model.

    Raises ConfigError for a configuration that cannot be copied.
    """
    try:
        if not isinstance(config, BaseModel):
            return copied(config, "it")
        episode_config = copy.copy(config)
        episode_config.__dict__.update(
            copied({name: getattr(config, name) for name in type(config).model_fields}, "it")
        )
        return episode_config
    except TypeError as exc:
        raise ConfigError(f"env_config of {cls.__name__}: {exc}") from exc


def required(cls: type) -> list[str]:
    """The required content of env_config: the keys without a default, or the validator's message.

    Raises ConfigError if the annotation cannot be checked.
    """
    try:
        validated_config(cls, None)
    except ConfigError as exc:
        if not isinstance(exc.__cause__, ValidationError):
            raise
        return [_wanted(error["type"], error["loc"], error["msg"]) for error in exc.__cause__.errors()]
    return []


def _wanted(kind: str, place: Sequence[int | str], message: str) -> str:
    return ".".join(map(str, place)) if kind == "missing" else message.removeprefix("Value error, ")


def _is_instance(config: object, hint: Any) -> bool:
    return isinstance(hint, type) and not is_typeddict(hint) and isinstance(config, hint)


def _none_given(cls: type, config: BaseModel | Mapping[str, JSON] | None) -> Mapping[str, JSON]:
    """The configuration of a class without `config`. Raises ConfigError if the configuration is not empty."""
    if config:
        keys = ", ".join(map(repr, config)) if isinstance(config, Mapping) else repr(config)
        raise ConfigError(
            f"env_config of {cls.__name__}: {keys} given, but the class takes no configuration; "
            "annotate one: `config: MyConfig` (a pydantic model) or `config: dict[str, Any]`"
        )
    return {}


@cache
def _hint(cls: type) -> Any:
    """The type in the annotation of `config`; None without an annotation. Other annotations are not read, because they
    may name types that only a type checker imports."""
    for base in cls.__mro__:
        annotations = inspect.get_annotations(base)
        if base.__module__ == "agentrl.env.env" or "config" not in annotations:
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


def _refuse_unknown(cls: type, hint: Any, config: Mapping[str, JSON]) -> None:
    """Raises ConfigError for unknown keys, which pydantic would ignore by default."""
    keys = _keys(hint)
    if keys is not None and (odd := [key for key in config if key not in keys]):
        raise ConfigError(f"env_config of {cls.__name__}: {'; '.join(unknown([key], hint) for key in odd)}")


def _keys(hint: Any) -> list[str] | None:
    """All possible keys. None if the type itself treats unknown keys, or uses aliases."""
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        return _model_keys(hint)
    return list(keys_of(hint)) if is_typeddict(hint) or is_dataclass(hint) else None


def _model_keys(model: type[BaseModel]) -> list[str] | None:
    if model.model_config.get("extra") not in (None, "forbid"):
        return None
    aliases = [alias for info in model.model_fields.values() for alias in (info.alias, info.validation_alias)]
    names = [*model.model_fields, *filter(None, aliases)]
    strings = [name for name in names if isinstance(name, str)]
    return strings if len(strings) == len(names) else None
