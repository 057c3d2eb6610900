"""Errors of a configuration in one line: the key, the value or the file, and the remedy."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from agentrl.errors import ConfigError, did_you_mean, unknown_key

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic.fields import FieldInfo
    from pydantic_core import ErrorDetails

_ALIKE = 0.85
"""Two file names are similar if difflib's ratio is at least this. The ratio is high, as file names often end alike."""
_BESIDE = 1000
"""The most files of a folder whose names are compared."""
_LONG = 80
_SHOULD = re.compile(r"\w+ should (.+?)(?:, unable .*| after validation.*)?$")
"""Most messages of pydantic match this pattern. The group is the expectation, such as "be a valid integer"."""
_KINDS = {
    **dict.fromkeys(("dict_type", "mapping_type", "model_type", "dataclass_type"), "a mapping of keys to values"),
    "path_type": "a path",
}
"""Type of pydantic's error -> the expected kind of value, in words."""


def problems(exc: ValidationError, kind: Any, whole: str = "it") -> str:
    """Each wrong key of a configuration of the type `kind`, with the problem. `whole` names the configuration."""
    return "; ".join(dict.fromkeys(_problem(error, kind, whole) for error in exc.errors()))


def _problem(error: ErrorDetails, kind: Any, whole: str) -> str:
    key, text = ".".join(map(str, error["loc"])), error["msg"].removeprefix("Value error, ")
    if error["type"] == "missing":
        return f"{key} is missing"
    if error["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return unknown(error["loc"], kind)
    if expected := _KINDS.get(error["type"]):
        section = _at(kind, error["loc"]) if key else None
        keys = ", ".join(keys_of(section))
        null = isinstance(section, tuple) and type(None) in get_args(section[0])
        text = f"Input should be {expected}{f' ({keys})' if keys else ''}{' or null' if null else ''}"
    if should := _SHOULD.match(text):
        value = f", not {error['input']!r}"
        return f"{key or whole} must {should[1]}{value if len(value) < _LONG else ''}"
    return f"{key}: {text}" if key and key not in text else text


def unknown(place: Sequence[int | str], kind: Any) -> str:
    """A message such as `unknown key rank; did you mean rank under lora?`. `place` is the path of the key in a
    configuration of the type `kind`."""
    *outer, last = map(str, place)
    key, name, top = ".".join([*outer, last]), last.rpartition(".")[2], keys_of(kind)
    elsewhere = {f"under {other}": keys_of(top[other]) for other in top if [other] != outer}
    elsewhere |= {"at the top level": top} if outer else {}
    for where, keys in elsewhere.items():
        if meant := next((candidate for candidate in (name, name.removeprefix("max_")) if candidate in keys), None):
            return f"unknown key {key}; did you mean {meant} {where}?"
    return unknown_key(key, keys_of(_at(kind, outer)))


def _at(kind: Any, place: Sequence[int | str]) -> Any:
    """The type of the value at the path `place` in a configuration of the type `kind`. If a type on the way has no
    keys, the result is this type."""
    for name in place:
        kind = keys_of(kind).get(str(name), kind)
    return kind


def keys_of(kind: Any) -> Mapping[str, Any]:
    """The keys of a model, a dataclass or a TypedDict, each with its type. Empty for any other type.

    `kind` may also be a mapping of keys to types.
    """
    if isinstance(kind, Mapping):
        return kind
    if not isinstance(kind, type):
        parts = kind if isinstance(kind, tuple) else get_args(kind)
        return next(filter(None, map(keys_of, parts)), {})
    from pydantic import BaseModel
    from typing_extensions import is_typeddict

    if issubclass(kind, BaseModel):
        return {_written(key, field): (field.annotation, *field.metadata) for key, field in kind.model_fields.items()}
    if is_typeddict(kind):
        return kind.__annotations__
    return {field.name: field.type for field in fields(kind)} if is_dataclass(kind) else {}


def _written(key: str, field: FieldInfo) -> str:
    """The name under which a configuration file has a field."""
    return field.validation_alias if isinstance(field.validation_alias, str) else key


def check_file(path: Path, remedy: str, kind: str = "file", named_by: str = "") -> None:
    """Raises ConfigError if no file is at the path. The message names a file with a similar name in the same folder, or
    else the remedy."""
    if path.is_file():
        return
    where = f"{named_by} {path}".strip()
    if path.is_dir():
        raise ConfigError(f"{where}: it is a folder; name a file in it")
    beside = (other.name for other in islice(path.parent.glob("*"), _BESIDE))
    raise ConfigError(f"{where}: no such {kind}{did_you_mean(path.name, beside, f'; {remedy}', cutoff=_ALIKE)}")
