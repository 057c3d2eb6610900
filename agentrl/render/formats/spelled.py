"""Known calls in a template's spelling, and the text around the calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from agentrl.render.read.lexer import pieces
from agentrl.render.read.schema import kind_of
from agentrl.types import JSON

Span = tuple[int, int]
Wrap = tuple[str, str, str, str]
"""Texts around calls: the opening of the block, the opening of a call, the end of a call, the end of the block."""

SAID = "zqsaid"
"""The content of a turn beside its calls, if the template requires content."""


@dataclass(frozen=True, slots=True)
class Spelled:
    """Turns with calls of the names and arguments in `name` and `arguments`, without thoughts and stop token."""

    texts: tuple[str, ...]
    """A turn with one call, and a turn with two calls if the template writes two."""
    typed: Callable[[JSON], str]
    """A turn with one call, with this value as the first argument."""


def name(i: int) -> str:
    """The name of the i-th call."""
    return f"zqname{i}"


def arguments(i: int) -> dict[str, JSON]:
    """Two arguments of the i-th call."""
    return {f"zqkeya{i}": f"zqvala{i}", f"zqkeyb{i}": f"zqvalb{i}"}


def call_id(i: int) -> str:
    """Nine letters and digits: the strictest form among all templates."""
    return f"zqid0000{i}"


def id_with_name(i: int) -> str:
    """An id for templates that write the id in place of the name, like Kimi's."""
    return f"functions.{name(i)}:{i}"


def words(i: int) -> list[str]:
    """Name, key, value, key, value of the i-th call."""
    return [name(i), *(str(word) for pair in arguments(i).items() for word in pair)]


def places(text: str, i: int) -> list[int] | None:
    """The places of the i-th call's words, if in this order. A key's last place is before its value."""
    offsets, offset = list[int](), 0
    for word in words(i):
        offset = text.find(word, offset)
        if offset < 0:
            return None
        offsets.append(offset)
        offset += len(word)
    return offsets


def wrap(before: str, inner: str | None, after: str) -> Wrap:
    """The text around calls, split at the text between two calls in a turn, if the template writes two calls."""
    before = before.rpartition(SAID)[2]
    if inner is None:
        return "", before.strip(), after.strip(), ""
    call_open = common_end(before, inner)
    call_close = common_start(inner[: len(inner) - len(call_open)], after)
    opening = before[: len(before) - len(call_open)]
    return opening.strip(), call_open.strip(), call_close.strip(), after[len(call_close) :].strip()


def around(texts: Sequence[str], spans: Sequence[Sequence[Span]]) -> tuple[str, str | None, str]:
    """The text before, between and after the calls at these places."""
    (start, end), text = spans[0][0], texts[0]
    inner = texts[1][spans[1][0][1] : spans[1][1][0]] if len(texts) > 1 else None
    return text[:start], inner, text[end:]


def common_start(first: str, second: str) -> str:
    """The common beginning of both texts, in whole pieces."""
    common = list[str]()
    for ours, theirs in zip(pieces(first), pieces(second), strict=False):
        if ours != theirs:
            break
        common.append(ours)
    return "".join(common)


def common_end(first: str, second: str) -> str:
    """The common end of both texts, in whole pieces."""
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
