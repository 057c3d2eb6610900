"""Check the tools: their JSON Schemas, their descriptions, and whether the model's template shows them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import docstring_parser

from agentrl._util.findings import Place
from agentrl.check.fuzzing import place_of_tool
from agentrl.check.playing import EnvUnderTest
from agentrl.env.env import tools_of
from agentrl.errors import TemplateError
from agentrl.types import JSON, ToolSpec

_CHECK = "schemas"
_TYPES = frozenset({"object", "array", "string", "integer", "number", "boolean", "null"})
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def schemas(subject: EnvUnderTest, tools: Sequence[ToolSpec]) -> None:
    """Report mistakes in the tools that an episode offers."""
    for spec in tools:
        function = spec["function"]
        place = place_of_tool(subject.author, function["name"])
        for message, remedy in _wrong(function):
            subject.report.error(_CHECK, place, message, remedy)
        _described(subject, function, place)
    names = [spec["function"]["name"] for spec in tools]
    for name in sorted({name for name in names if names.count(name) > 1}):
        place = place_of_tool(subject.author, name)
        subject.report.error(_CHECK, place, f"two tools are named {name!r}", "rename one")
    for tool in tools_of(subject.cls).values():
        _documented(subject, tool.name, getattr(subject.cls, tool.attribute))
    _rendered(subject, tools)
    subject.report.checked[_CHECK] = f"{len(tools)} tools"


def _wrong(function: Mapping[str, JSON]) -> Iterator[tuple[str, str]]:
    name, schema = function["name"], function.get("parameters", {"type": "object"})
    if not _NAME.fullmatch(name):
        yield f"the tool name {name!r} is not valid in models' APIs", "use letters, digits, _ and -, at most 64"
    if schema and schema.get("type") != "object":
        yield (
            f"the parameters of {name} are of type {schema.get('type')!r}",
            'write {"type": "object", "properties": {...}}',
        )
        return
    for path, problem in _faults(schema, "parameters"):
        yield f"the schema of {name} is not valid JSON Schema: {path} {problem}", "see json-schema.org"


def _faults(schema: Any, path: str) -> Iterator[tuple[str, str]]:
    """The mistakes in a JSON Schema, each with its path in the schema."""
    if isinstance(schema, bool):
        return
    if not isinstance(schema, Mapping):
        yield path, f"is {schema!r:.40}, not a schema"
        return
    yield from _faults_here(schema, path)
    for key in ("properties", "$defs", "definitions"):
        inner = schema.get(key, {})
        if not isinstance(inner, Mapping):
            yield f"{path}.{key}", f"is {inner!r:.40}, not an object"
            continue
        for name, subschema in inner.items():
            yield from _faults(subschema, f"{path}.{key}.{name}")
    for key in ("items", "additionalProperties"):
        if key in schema:
            yield from _faults(schema[key], f"{path}.{key}")
    for key in ("anyOf", "oneOf", "allOf"):
        for number, subschema in enumerate(schema.get(key, ())):
            yield from _faults(subschema, f"{path}.{key}[{number}]")


def _faults_here(schema: Mapping[str, JSON], path: str) -> Iterator[tuple[str, str]]:
    yield from _faults_of_type(schema.get("type", ()), f"{path}.type")
    yield from _faults_of_required(schema, f"{path}.required")
    if "enum" in schema and not _is_list(schema["enum"]):
        yield f"{path}.enum", f"is {schema['enum']!r:.40}, not a list"
    elif "enum" in schema and not schema["enum"]:
        yield f"{path}.enum", "is empty, so nothing fits"


def _is_list(value: JSON) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _faults_of_type(kinds: JSON, path: str) -> Iterator[tuple[str, str]]:
    for kind in kinds if _is_list(kinds) else (kinds,):
        if kind not in _TYPES:
            yield path, f"is {kind!r}; the types are {', '.join(sorted(_TYPES))}"


def _faults_of_required(schema: Mapping[str, JSON], path: str) -> Iterator[tuple[str, str]]:
    required, properties = schema.get("required", ()), schema.get("properties")
    if not _is_list(required):
        yield path, f"is {required!r:.40}, not a list of names"
    elif isinstance(properties, Mapping):
        for missing in [name for name in required if name not in properties]:
            yield path, f"names {missing!r}, which is not a property"


def _described(subject: EnvUnderTest, function: Mapping[str, JSON], place: Place) -> None:
    name = function["name"]
    if not str(function.get("description") or "").strip():
        subject.report.warn(
            _CHECK, place, f"tool {name} has no description, so the model must guess", "write a docstring"
        )
    properties = (function.get("parameters") or {}).get("properties") or {}
    if not isinstance(properties, Mapping):
        return
    described = [key for key, schema in properties.items() if isinstance(schema, Mapping) and schema.get("description")]
    silent = [key for key in properties if key not in described]
    if described and silent:
        message = f"tool {name} describes some of its arguments, but not {', '.join(silent)}"
        subject.report.warn(_CHECK, place, message, "describe it too, under `Args:`")


def _documented(subject: EnvUnderTest, name: str, method: Any) -> None:
    """Report a tool's docstring that describes an argument which the method lacks."""
    described = {param.arg_name for param in docstring_parser.parse(inspect.getdoc(method) or "").params}
    for unknown in sorted(described - set(inspect.signature(method).parameters)):
        place = place_of_tool(subject.author, name)
        subject.report.error(
            _CHECK,
            _line_in_docstring(method, unknown, place),
            f"the docstring of tool {name} describes {unknown!r}, which is not one of its arguments",
            "name it as the method does: the model does not see this description",
        )


def _line_in_docstring(method: Any, word: str, otherwise: Place) -> Place:
    try:
        lines, first = inspect.getsourcelines(inspect.unwrap(getattr(method, "__func__", method)))
    except (OSError, TypeError):
        return otherwise
    offset = next(
        (i for i, line in enumerate(lines) if re.match(rf"\s*(:param )?\s*\*?{re.escape(word)}\b", line)), None
    )
    return otherwise if offset is None else Place(otherwise.file, first + offset)


def _rendered(subject: EnvUnderTest, tools: Sequence[ToolSpec]) -> None:
    """Report tools that the model's template does not show."""
    place = subject.author.of_member("tools", *(tool.attribute for tool in tools_of(subject.cls).values()))
    try:
        subject.envs.prove(subject.renderer)
        rendered = subject.renderer.bind(tools).prompt("Hello.")
    except TemplateError as exc:
        subject.report.error(_CHECK, place, f"the model's template cannot carry the Env: {exc}", "try another --model")
        return
    prompt_text = subject.renderer.decode(rendered.tokens)
    for name in [spec["function"]["name"] for spec in tools if spec["function"]["name"] not in prompt_text]:
        message = f"the model's template does not show tool {name}"
        subject.report.error(_CHECK, place_of_tool(subject.author, name), message, "try another --model")
