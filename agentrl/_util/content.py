"""The content of a value as text that is the same in every process. A hash of the text shows whether data changed."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import date
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from types import MappingProxyType
from typing import Any
from uuid import UUID

from agentrl.plain import JSON, MAX_DEPTH

_TEXTS = (bytes, date, Decimal, Enum, PurePath, UUID)
"""Types whose text is their content."""
_SETS = 3
"""The deepest nesting of sets. Members of a set have no order, so an object in two members gets no number."""


def content(value: Any) -> str:
    """The content of a value as text, without addresses and without the order of sets. Plain JSON is written as `json`
    does.

    An object is read by pickle's protocol. For an object that cannot be pickled, the text is the name of the class.
    """
    return json.dumps(_ValueReader().of(value), sort_keys=True)


@dataclass(slots=True)
class _ValueReader:
    sets: int = _SETS
    inside: set[int] = field(default_factory=set)
    """Ids of the lists, mappings and sets around the current value."""
    seen: dict[int, tuple[int, object]] = field(default_factory=dict)
    """`id` of an object -> the object's number in the text, and the object. The reference keeps the object alive, so
    that no id is used twice."""

    def of(self, value: Any) -> JSON:
        if isinstance(value, _TEXTS) and not isinstance(value, str | int):
            return str(value)
        if value is None or isinstance(value, str | int | float):
            return value
        if isinstance(value, dict | MappingProxyType | list | tuple | set | frozenset):
            return self._held(value)
        name = getattr(value, "__qualname__", None)  # of classes and functions
        return name if isinstance(name, str) else self._object(value)

    def _held(self, value: Any) -> JSON:
        if id(value) in self.inside or len(self.inside) >= MAX_DEPTH:
            return "..."
        self.inside.add(id(value))
        try:
            if isinstance(value, set | frozenset):
                return self._members(value)
            if isinstance(value, list | tuple):
                return [self.of(item) for item in value]
            numbers = all(isinstance(key, int | float) for key in value)  # `json` sorts numbers by value
            return {key if numbers else self._key(key): self.of(item) for key, item in value.items()}
        finally:
            self.inside.discard(id(value))

    def _key(self, key: Any) -> str:
        """A mapping's key as text, so that keys of several types can be sorted."""
        return key if isinstance(key, str) else json.dumps(self.of(key), sort_keys=True)

    def _members(self, value: set[Any] | frozenset[Any]) -> JSON:
        if not self.sets:
            return len(value)
        return sorted(
            json.dumps(_ValueReader(self.sets - 1, set(self.inside)).of(member), sort_keys=True) for member in value
        )

    def _object(self, value: Any) -> JSON:
        if id(value) in self.seen:
            return f"object {self.seen[id(value)][0]}"
        self.seen[id(value)] = len(self.seen), value
        if is_dataclass(value):
            return self._held({attribute.name: getattr(value, attribute.name, None) for attribute in fields(value)})
        return self._held([type(value), *_state(value)])


def _state(value: Any) -> list[Any]:
    """The state of an object, as pickle would store it. Empty if the object cannot be pickled."""
    try:
        if hasattr(value, "dtype") and hasattr(value, "tolist"):  # pickles of tensors hold addresses
            return [str(value.dtype), value.tolist()]
        reduced = value.__reduce_ex__(4)
        if isinstance(reduced, str):
            return [reduced]
        return [*reduced[1:3], *map(list, filter(None, reduced[3:5]))]
    except Exception:  # noqa: BLE001 - the boundary of a foreign class
        return []
