"""The common parts of spellings of arguments after a call's name."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

from agentrl.errors import TemplateError
from agentrl.render.formats.spelled import Span, Spelled
from agentrl.render.read.json_value import ParseFailure, json_at
from agentrl.render.read.lexer import Lexed, loose
from agentrl.render.read.schema import Schema
from agentrl.types import JSON


class Arguments(Protocol):
    """The spelling of a call's arguments."""

    @property
    def markers(self) -> tuple[str, ...]:
        """Markers that a Lexer must distinguish from look-alikes."""
        ...

    def read(self, lexed: Lexed, offset: int, close: str, schema: Schema) -> tuple[Any, int]:
        """A mapping or a ParseFailure, and its end. `close` follows the arguments. `schema` describes the tool's
        parameters.
        """
        ...


CDATA = ("<![CDATA[", "]]>")
"""Strings around values with markup, in some templates."""
Regions: TypeAlias = list[list[Span]]
"""The places of each call's arguments, in each text of a Spelled."""
Learned: TypeAlias = tuple[Arguments, Regions]

NULL = "null"
_EMPTY: Mapping[str, Callable[[], JSON]] = {"array": list, "object": dict}
"""The value of an element without content, by its type."""
_QUOTED = re.compile(r"""\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'""", re.DOTALL)
_TRUTH = {"true": True, "false": False}
_NAMES = {**_TRUTH, "null": None}
"""JSON's words within Python text."""


def by_schema(text: str, schema: Schema, null: str = NULL) -> JSON:
    """A value without quotes, read according to the schema. `null` is the template's word for null.

    Text stays text wherever a string is allowed: `"0"` and `0` look the same. Beside a string, only null, objects and
    lists are read as such, and only where the schema names these types. Where no string is allowed, the text is JSON,
    or Python, if the schema allows the value. Other text stays text, and the Env answers: `1,000` is no integer.
    """
    kinds = schema.kinds
    if kinds is None or kinds == {"string"}:
        return text
    if "null" in kinds and text.strip() in (NULL, null):
        return None
    if "string" not in kinds:
        return _without_quotes(text, kinds, schema)
    value = allowed(text, schema)
    if isinstance(value, ParseFailure):
        return text
    return value if isinstance(value, dict | list) or not schema.allows(text) else text


def allowed(text: str, schema: Schema) -> Any:
    """The value of a text without quotes, or a ParseFailure if the schema does not allow the value.

    Commas make a list without brackets, but only where the schema allows nothing except a list: in Python, `1,000` is
    two numbers.
    """
    value, kinds = literal(text), schema.kinds
    if isinstance(value, ParseFailure):
        return value
    bare = isinstance(value, list) and not text.lstrip().startswith(("[", "("))
    if not schema.allows(value) or (bare and (kinds is None or kinds - {"array", "null"})):
        return ParseFailure("the schema does not allow it")
    if isinstance(value, float) and value.is_integer() and kinds is not None and "number" not in kinds:
        return int(value)
    return value


def _without_quotes(text: str, kinds: frozenset[str], schema: Schema) -> JSON:
    """The value of a text that cannot be a string."""
    value = literal(text)
    value = allowed(value if isinstance(value, str) else text, schema)  # "5", with its quotes
    if not isinstance(value, ParseFailure):
        json_value: JSON = value
        return json_value
    if not text.strip() and (empty := next((kind for kind in _EMPTY if kind in kinds), None)):
        return _EMPTY[empty]()
    if re.fullmatch(r"\s*[-+]?[0-9]{1,4000}\s*", text) and schema.allows(int(text)):
        return int(text)
    truth = _TRUTH.get(text.strip().lower())
    return text if truth is None or not schema.allows(truth) else truth


def null_in(probes: Spelled) -> str:
    """The template's word for null. Some templates write it as Python does."""
    try:
        return "None" if re.search(r"\bNone\b", probes.typed(None)) else NULL
    except TemplateError:
        return NULL


def runs_on(lexed: Lexed, offset: int, stop: int, close: str, opening: str) -> bool:
    """Whether the value at `text[offset:stop]` runs into the next call, because the close of the value is missing."""
    ended = lexed.search(loose(close), offset) if close else None
    if ended is None or ended.end() > stop:
        return False
    opened = lexed.search(opening, ended.end())
    return opened is not None and opened.end() <= stop


def section(lexed: Lexed, offset: int, end: str) -> tuple[re.Match[str] | None, str]:
    """The text of the CDATA section that opens at `offset`, and the match of the section's close plus the marker `end`.

    If a second section opens first, this section has lost its close. Without a close, the result is None and no text.
    """
    start = offset + len(CDATA[0])
    closed = lexed.search(re.escape(CDATA[1]) + end, start)
    again = lexed.search(re.escape(CDATA[0]), start)
    if closed is None or (again is not None and again.start() < closed.start()):
        return None, ""
    return closed, lexed.text[start : closed.start()]


def literal(text: str) -> Any:
    """The JSON or Python value of the text, or a ParseFailure. Python may contain JSON's words, such as `null`."""
    value, end = json_at(text.strip(), 0)
    if not isinstance(value, ParseFailure) and end == len(text.strip()):
        return value
    try:
        tree = ast.parse(_QUOTED.sub(_on_one_line, text.strip()), mode="eval")
        value = ast.literal_eval(_Words().visit(tree))
        return json.loads(json.dumps(value, allow_nan=False))  # a tuple is a list
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return ParseFailure("neither JSON nor a Python literal")


def _on_one_line(quoted: re.Match[str]) -> str:
    """The quoted string with its line breaks and tabs escaped. Models write line breaks in strings. Python refuses such
    strings.
    """
    return quoted.group().replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")


class _Words(ast.NodeTransformer):
    """JSON's words replaced by Python's."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(_NAMES[node.id]) if node.id in _NAMES else node
