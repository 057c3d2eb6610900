"""Common functions of the formats in which arguments are written after a call's name."""

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
    """A format of a call's arguments."""

    @property
    def markers(self) -> tuple[str, ...]:
        """Markers that a Lexer must distinguish from look-alikes."""
        ...

    def read(self, lexed: Lexed, offset: int, close: str, schema: Schema) -> tuple[Any, int]:
        """Read the arguments at `offset`: a mapping or a ParseFailure, and the offset of its end. The text `close`
        follows the arguments. `schema` describes the tool's parameters."""
        ...


CDATA = ("<![CDATA[", "]]>")
"""The opening and the close of a section that some templates write around values with markup."""
Regions: TypeAlias = list[list[Span]]
"""The spans of the arguments: for each text of a Spelled, a list with a span for each call."""
Learned: TypeAlias = tuple[Arguments, Regions]

NULL = "null"
_EMPTY: Mapping[str, Callable[[], JSON]] = {"array": list, "object": dict}
"""JSON type -> the value of an element without content."""
_QUOTED = re.compile(r"""\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'""", re.DOTALL)
_TRUTH = {"true": True, "false": False}
_NAMES = {**_TRUTH, "null": None}
"""JSON's words that may occur as names in a Python expression -> their values."""


def by_schema(text: str, schema: Schema, null: str = NULL) -> JSON:
    """Read a value that is written without quotes, according to the schema. `null` is the template's word for null.

    If the schema allows a string, the text stays a string, because `"0"` and `0` look the same; only null, objects and
    lists are read as such, if the schema names these types. If the schema allows no string, the text is read as JSON or
    Python, if the schema allows the value. Other text, such as `1,000` for an integer, stays a string for the Env to
    reject.
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

    Commas make a list without brackets only if the schema allows nothing except a list, because `1,000` would be two
    numbers in Python.
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
    """The template's word for null: JSON's or Python's."""
    try:
        return "None" if re.search(r"\bNone\b", probes.typed(None)) else NULL
    except TemplateError:
        return NULL


def runs_on(lexed: Lexed, offset: int, stop: int, close: str, opening: str) -> bool:
    """Whether the value at `text[offset:stop]` extends into the next call, because the end marker of the value is
    missing."""
    ended = lexed.search(loose(close), offset) if close else None
    if ended is None or ended.end() > stop:
        return False
    opened = lexed.search(opening, ended.end())
    return opened is not None and opened.end() <= stop


def section(lexed: Lexed, offset: int, end: str) -> tuple[re.Match[str] | None, str]:
    """Read the CDATA section that opens at `offset`. Returns the match of the section's close with the marker `end`,
    and the section's text.

    If a second section opens before, the close is missing. Without a close, the result is None and an empty text.
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
    """The quoted string with escaped line breaks and tabs. Models write line breaks in strings, and Python refuses such
    strings."""
    return quoted.group().replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")


class _Words(ast.NodeTransformer):
    """Replaces JSON's words for true, false and null in a Python expression by Python's."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(_NAMES[node.id]) if node.id in _NAMES else node
