"""Known calls as a template writes them, and the text around the calls. Learning searches for the words of these
calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from agentrl.render.read.lexer import pieces
from agentrl.render.read.schema import kind_of
from agentrl.types import JSON

Span = tuple[int, int]
Wrap = tuple[str, str, str, str]
"""The four texts around calls: at the start of the block, before each call, after each call, at the end of the
block."""

SAID = "zqsaid"
"""The content of a turn beside its calls, if the template requires content."""


@dataclass(frozen=True, slots=True)
class Spelled:
    """A template's text of turns whose calls have the names and arguments of `name` and `arguments`, without thoughts
    and stop token."""

    texts: tuple[str, ...]
    """A turn with one call. Then a turn with two calls, if the template can write two."""
    typed: Callable[[JSON], str]
    """Returns a turn with one call, whose first argument has the value."""


def name(i: int) -> str:
    """The name of the i-th call."""
    return f"zqname{i}"


def arguments(i: int) -> dict[str, JSON]:
    """The arguments of the i-th call: two keys with their values."""
    return {f"zqkeya{i}": f"zqvala{i}", f"zqkeyb{i}": f"zqvalb{i}"}


def call_id(i: int) -> str:
    """The id of the i-th call: nine letters and digits, which all templates accept."""
    return f"zqid0000{i}"


def id_with_name(i: int) -> str:
    """The id of the i-th call, for templates that write the id in place of the name, like Kimi's."""
    return f"functions.{name(i)}:{i}"


def words(i: int) -> list[str]:
    """The five words of the i-th call: name, key, value, key, value."""
    return [name(i), *(str(word) for pair in arguments(i).items() for word in pair)]


def places(text: str, i: int) -> list[int] | None:
    """The offsets of the words of the i-th call in a text. None if a word is missing or in another order. Of several
    occurrences of a key, the last before its value counts."""
    offsets, offset = list[int](), 0
    for word in words(i):
        offset = text.find(word, offset)
        if offset < 0:
            return None
        offsets.append(offset)
        offset += len(word)
    return offsets


def wrap(before: str, inner: str | None, after: str) -> Wrap:
    """The Wrap of texts around calls. The text between two calls is split into the end of a call and the start of the
    next."""
    before = before.rpartition(SAID)[2]
    if inner is None:
        return "", before.strip(), after.strip(), ""
    call_open = common_end(before, inner)
    call_close = common_start(inner[: len(inner) - len(call_open)], after)
    opening = before[: len(before) - len(call_open)]
    return opening.strip(), call_open.strip(), call_close.strip(), after[len(call_close) :].strip()


def around(texts: Sequence[str], spans: Sequence[Sequence[Span]]) -> tuple[str, str | None, str]:
    """The texts before, between and after the calls at the spans."""
    (start, end), text = spans[0][0], texts[0]
    inner = texts[1][spans[1][0][1] : spans[1][1][0]] if len(texts) > 1 else None
    return text[:start], inner, text[end:]


def common_start(first: str, second: str) -> str:
    """The text with which both texts begin, cut to whole pieces (see `lexer.pieces`)."""
    common = list[str]()
    for ours, theirs in zip(pieces(first), pieces(second), strict=False):
        if ours != theirs:
            break
        common.append(ours)
    return "".join(common)


def common_end(first: str, second: str) -> str:
    """The text with which both texts end, cut to whole pieces (see `lexer.pieces`)."""
    common = list[str]()
    for ours, theirs in zip(reversed(pieces(first)), reversed(pieces(second)), strict=False):
        if ours != theirs:
            break
        common.insert(0, ours)
    return "".join(common)


def schema(value: JSON) -> Mapping[str, JSON]:
    """The JSON schema of a value."""
    if isinstance(value, dict):
        return {"type": "object", "properties": {key: schema(item) for key, item in value.items()}}
    if isinstance(value, list):
        kinds = [schema(item) for item in value]
        return {"type": "array", "items": kinds[0] if len(set(map(type, value))) == 1 else {"anyOf": kinds}}
    return {"type": kind_of(value)}
