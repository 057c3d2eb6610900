"""What is wrong with a configuration, in one line: the key, its value or the file, and the remedy."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from itertools import islice
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from typing_extensions import is_typeddict

from agentrl.errors import did_you_mean, unknown_key

_ALIKE = 0.8
"""How similar names of files are: their endings are often equal."""
_BESIDE = 1000
"""How many files of a folder are compared."""
_SHOULD = re.compile(r"\w+ should (.+?)(?:, unable .*| after validation.*)?$")
"""Pydantic's form of most messages."""
_MAPPINGS = ("dict_type", "mapping_type", "model_type", "model_attributes_type", "dataclass_type")


def problems(exc: ValidationError, kind: Any, whole: str = "it") -> str:
    """Each wrong key of a configuration of the type `kind`, and what is wrong with it. `whole` names all of it."""
    return "; ".join(dict.fromkeys(_problem(error, kind, whole) for error in exc.errors()))


def _problem(error: ErrorDetails, kind: Any, whole: str) -> str:
    key, said = ".".join(map(str, error["loc"])), error["msg"].removeprefix("Value error, ")
    if error["type"] == "missing":
        return f"{key} is missing"
    if error["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return unknown(error["loc"], kind)
    if error["type"] in _MAPPINGS:
        said = "Input should be a mapping of keys to values"
    if should := _SHOULD.match(said):
        return f"{key or whole} must {should[1]}, not {error['input']!r:.80}"
    return f"{key}: {said}" if key and key not in said else said


def unknown(place: Sequence[int | str], kind: Any) -> str:
    """`unknown key rank; did you mean rank under lora?`: the key at a place of a configuration of the type `kind`."""
    *outer, last = map(str, place)
    own, section = ".".join(outer), kind
    for name in outer:
        section = keys_of(section).get(name, section)
    name, top = last.rpartition(".")[2], keys_of(kind)
    others = {f"under {key}": keys_of(inner) for key, inner in top.items() if key != own}
    for where, keys in {**others, **({"at the top level": top} if outer else {})}.items():
        if name in keys:
            return f"unknown key {'.'.join([*outer, last])}; did you mean {name} {where}?"
    return unknown_key(".".join([*outer, last]), keys_of(section))


def keys_of(kind: Any) -> Mapping[str, Any]:
    """The keys that a model, a dataclass or a TypedDict takes, each with its type. Of any other type, none.

    A mapping of keys to types is such a kind, too.
    """
    if isinstance(kind, Mapping):
        return kind
    if not isinstance(kind, type):
        parts = kind if isinstance(kind, tuple) else get_args(kind)
        return next(filter(None, map(keys_of, parts)), {})
    if issubclass(kind, BaseModel):
        return {key: (field.annotation, *field.metadata) for key, field in kind.model_fields.items()}
    if is_typeddict(kind):
        return kind.__annotations__
    return {field.name: field.type for field in fields(kind)} if is_dataclass(kind) else {}


def near_file(path: Path, otherwise: str) -> str:
    """`; did you mean tasks.jsonl?` for a file that does not exist. `otherwise` if none beside it is similar."""
    beside = (other.name for other in islice(path.parent.glob("*"), _BESIDE))
    return did_you_mean(path.name, beside, otherwise, cutoff=_ALIKE)
