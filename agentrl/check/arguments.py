"""Random arguments for a tool, generated from its JSON Schema: some are valid, some are not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

from agentrl.types import JSON, ToolSpec

LONG = "A very long text. " * 1200
_TEXTS = ("Rome", "x", "", "0", "-1", "a b c", "../../etc/passwd", "{}", "é 漢字 \u202e", "\n", "None", "'\"; --", LONG)
_NUMBERS = (0, 1, -1, 3, 10**9, -(10**9), 2**63)
_DEEPEST = 4


class Try(NamedTuple):
    """A call of a tool, to be tried on the Env."""

    tool: str
    arguments: Mapping[str, JSON]
    fits: bool
    """Whether the arguments fit the schema."""


def tries(spec: ToolSpec, rng: Random, *, fitting: int = 8) -> Iterator[Try]:
    """Calls of a tool: some valid calls, then some invalid calls."""
    function = spec["function"]
    schema = function.get("parameters") or {}
    name = function["name"]
    for number in range(fitting):
        yield Try(name, arguments(schema, rng, number), True)
    yield from (Try(name, wrong, False) for wrong in _wrong(schema, rng))


def arguments(schema: Mapping[str, JSON], rng: Random, number: int = 0) -> dict[str, JSON]:
    """Arguments that fit a schema. Higher numbers give stranger values."""
    value = _value(schema, schema, rng, number, 0)
    return value if isinstance(value, dict) else {}


def _wrong(schema: Mapping[str, JSON], rng: Random) -> Iterator[dict[str, JSON]]:
    fits = arguments(schema, rng)
    required = schema.get("required") or ()
    if required:
        yield {key: value for key, value in fits.items() if key != required[0]}
        yield {}
    yield {**fits, "no_such_argument": 1}
    for key, value in fits.items():
        yield {**fits, key: None}
        yield {**fits, key: {"not": ["a", value]} if not isinstance(value, dict) else 7}


def _value(schema: Any, root: Mapping[str, JSON], rng: Random, number: int, depth: int) -> JSON:
    if not isinstance(schema, Mapping):
        return "x"
    if (reference := schema.get("$ref")) is not None:
        return _value(_referred(reference, root), root, rng, number, depth + 1)
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return rng.choice(list(schema["enum"]))
    for union in ("anyOf", "oneOf", "allOf"):
        if schema.get(union):
            return _value(schema[union][number % len(schema[union])], root, rng, number, depth + 1)
    kind = schema.get("type")
    kind = kind[number % len(kind)] if isinstance(kind, Sequence) and not isinstance(kind, str) and kind else kind
    make = _MAKERS.get(kind or ("object" if "properties" in schema else "string"), _text)
    return make(schema, root, rng, number, depth)


def _object(schema: Mapping[str, JSON], root: Mapping[str, JSON], rng: Random, number: int, depth: int) -> JSON:
    properties, required = schema.get("properties") or {}, schema.get("required") or ()
    if depth > _DEEPEST:
        properties = {key: value for key, value in properties.items() if key in required}
    chosen = [key for key in properties if key in required or (number and rng.random() < 0.5)]
    return {key: _value(properties[key], root, rng, number, depth + 1) for key in chosen}


def _array(schema: Mapping[str, JSON], root: Mapping[str, JSON], rng: Random, number: int, depth: int) -> JSON:
    least = schema.get("minItems", 0)
    count = max(least, 0 if depth > _DEEPEST else min(number % 3, schema.get("maxItems", 3)))
    return [_value(schema.get("items", {}), root, rng, number, depth + 1) for _ in range(count)]


def _text(schema: Mapping[str, JSON], root: Mapping[str, JSON], rng: Random, number: int, depth: int) -> JSON:
    text = _TEXTS[number % len(_TEXTS)] if number < len(_TEXTS) else rng.choice(_TEXTS)
    least, most = schema.get("minLength", 0), schema.get("maxLength", len(LONG))
    return (text + "x" * max(0, least - len(text)))[:most]


def _whole(schema: Mapping[str, JSON], root: Mapping[str, JSON], rng: Random, number: int, depth: int) -> JSON:
    least = schema.get("minimum", schema.get("exclusiveMinimum", -(2**63) - 1) + 1)
    most = schema.get("maximum", schema.get("exclusiveMaximum", 2**64) - 1)
    return int(min(max(rng.choice(_NUMBERS) if number else 1, least), most))


def _number(schema: Mapping[str, JSON], root: Mapping[str, JSON], rng: Random, number: int, depth: int) -> JSON:
    if "exclusiveMinimum" in schema or "exclusiveMaximum" in schema:
        return (schema.get("exclusiveMinimum", 0) + schema.get("exclusiveMaximum", 2)) / 2
    number_value = float(rng.choice(_NUMBERS)) / 2 if number else 1.0
    return min(max(number_value, schema.get("minimum", number_value)), schema.get("maximum", number_value))


_MAKERS: Mapping[str, Any] = {
    "object": _object,
    "array": _array,
    "string": _text,
    "integer": _whole,
    "number": _number,
    "boolean": lambda schema, root, rng, number, depth: number % 2 == 0,
    "null": lambda schema, root, rng, number, depth: None,
}


def _referred(reference: Any, root: Mapping[str, JSON]) -> JSON:
    """The schema to which a reference such as `#/$defs/Name` points."""
    schema: Any = root
    for part in str(reference).removeprefix("#/").split("/"):
        schema = schema.get(part, {}) if isinstance(schema, Mapping) else {}
    return schema
