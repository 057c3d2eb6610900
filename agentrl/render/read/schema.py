"""Questions about the JSON schema of an argument, for formats that write values without quotes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

_UNSET: Any = object()
_UNIONS = ("anyOf", "oneOf")
_NAMES = {
    "str": "string",
    "text": "string",
    "int": "integer",
    "float": "number",
    "double": "number",
    "bool": "boolean",
    "list": "array",
    "tuple": "array",
    "dict": "object",
    "map": "object",
    "none": "null",
}
"""Words for types in schemas that are written by hand -> JSON Schema's types."""
_KINDS = frozenset({"string", "integer", "number", "boolean", "array", "object", "null"})


@dataclass(frozen=True, slots=True)
class Schema:
    """A JSON schema. `root` is the document in which references are resolved."""

    definition: Any = field(default_factory=dict)
    root: Any = field(default_factory=dict)

    @property
    def kinds(self) -> frozenset[str] | None:
        """The JSON types that the schema allows. None: any type."""
        return _kinds(self.definition, self.root, _UNSET, frozenset())

    def allows(self, value: Any) -> bool:
        """Whether the schema allows the value: by its type, and by the list of allowed values, if any."""
        kinds = _kinds(self.definition, self.root, value, frozenset())
        return kinds is None or kind_of(value) in kinds

    def within(self, key: str) -> Schema:
        """The schema of the value under an object's key."""
        parts = list(self._parts())
        schemas = [part["properties"][key] for part in parts if key in _mapping(part, "properties")]
        schemas = schemas or [part["additionalProperties"] for part in parts if _mapping(part, "additionalProperties")]
        return Schema(schemas[0] if len(schemas) == 1 else {"anyOf": schemas} if schemas else {}, self.root)

    @property
    def items(self) -> Schema:
        """The schema of a list's elements."""
        schemas = [part["items"] for part in self._parts() if _mapping(part, "items")]
        return Schema(schemas[0] if len(schemas) == 1 else {"anyOf": schemas} if schemas else {}, self.root)

    @property
    def keys(self) -> frozenset[str]:
        """The keys of an object schema."""
        return frozenset(key for part in self._parts() for key in _mapping(part, "properties"))

    @property
    def requires(self) -> bool:
        """Whether an object must have any key."""
        return any(part.get("required") for part in self._parts())

    def _parts(self) -> Iterator[Mapping[str, Any]]:
        """The schema, the targets of its references, and the members of its unions."""
        queue, seen = [self.definition], set[int]()
        while queue:
            schema = queue.pop(0)
            if not isinstance(schema, Mapping) or id(schema) in seen:
                continue
            seen.add(id(schema))
            yield schema
            queue += [
                _target(schema, self.root),
                *(part for name in (*_UNIONS, "allOf") for part in _list(schema, name)),
            ]


def kind_of(value: Any) -> str:
    """The JSON type of a value. A whole number is an "integer"."""
    if isinstance(value, float):
        return "integer" if value.is_integer() else "number"
    kinds = {bool: "boolean", int: "integer", str: "string", list: "array", dict: "object"}
    return kinds.get(type(value), "null")


def _kinds(schema: Any, root: Any, value: Any, seen: frozenset[int]) -> frozenset[str] | None:
    """The types of a schema; None for any type. With a value, only this value among the listed values counts."""
    if not isinstance(schema, Mapping) or id(schema) in seen:
        return None
    seen |= {id(schema)}

    def inner(part: Any) -> frozenset[str] | None:
        return _kinds(part, root, value, seen)

    candidates = [_named(schema), _listed(schema, value), inner(_target(schema, root))]
    candidates += map(inner, _list(schema, "allOf"))
    for union in filter(None, (_list(schema, name) for name in _UNIONS)):
        parts = [kinds for part in union if (kinds := inner(part)) is not None]
        candidates.append(frozenset().union(*parts) if len(parts) == len(union) else None)
    named = [kinds for kinds in candidates if kinds is not None]
    return frozenset.intersection(*named) if named else None


def _named(schema: Mapping[str, Any]) -> frozenset[str] | None:
    """The types by the key `type`, a text or a list, or else by the keys of objects and lists."""
    named = schema.get("type")
    if named is None:
        return frozenset({"object"} if "properties" in schema else {"array"}) if _shaped(schema) else None
    names = {_NAMES.get(str(name).lower(), str(name).lower()) for name in (named if _is_list(named) else [named])}
    if not names <= _KINDS:
        return None
    more = {"integer"} if "number" in names else set()
    return frozenset(names | more | ({"null"} if schema.get("nullable") is True else set()))


def _shaped(schema: Mapping[str, Any]) -> bool:
    return isinstance(schema.get("properties"), Mapping) or isinstance(schema.get("items"), Mapping)


def _listed(schema: Mapping[str, Any], value: Any) -> frozenset[str] | None:
    """The types of the values in `const` and `enum`."""
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if not _is_list(values):
        return None
    return frozenset(kind_of(item) for item in values if value is _UNSET or _same(item, value))


def _same(first: Any, second: Any) -> bool:
    return kind_of(first) == kind_of(second) and bool(first == second)


def _target(schema: Mapping[str, Any], root: Any) -> Any:
    """The target of a `$ref` within the same document. None without a target."""
    ref = schema.get("$ref")
    if not isinstance(ref, str) or not ref.startswith("#"):
        return None
    target = root
    for step in ref[1:].split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(target, Mapping):
            target = target.get(step)
        else:
            target = target[int(step)] if _is_list(target) and step.isdigit() and int(step) < len(target) else None
    return target


def _mapping(schema: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = schema.get(name)
    return value if isinstance(value, Mapping) else {}


def _list(schema: Mapping[str, Any], name: str) -> list[Any]:
    value = schema.get(name)
    return list(value) if _is_list(value) else []


def _is_list(value: Any) -> TypeGuard[list[Any] | tuple[Any, ...]]:
    return isinstance(value, list | tuple)


ANY = Schema()
"""The schema of an argument that has no schema: it allows any value."""
