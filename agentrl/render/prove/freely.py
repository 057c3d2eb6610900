"""Variations of a template's calls that models write: a key before the name, no id, a missing end marker."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from agentrl.render.formats.json_calls import JsonCalls
from agentrl.render.formats.key_tags import AsKeyTags
from agentrl.render.formats.named_calls import NamedCalls
from agentrl.render.formats.pairs import AsPairs
from agentrl.render.read.calls import Block
from agentrl.render.read.json_value import json_at
from agentrl.render.read.lexer import ID, loose, pieces
from agentrl.types import Message


@dataclass(frozen=True, slots=True)
class Variation:
    """The text of a turn with a call. If `sound`, the call must be read correctly. Otherwise the call may be read as
    malformed, but never as a different call."""

    change: str
    text: str
    sound: bool = True


def variations(block: Block, message: Message, text: str) -> Iterator[Variation]:
    """Variations of `text`, the turn of a message with a single call."""
    (call,) = message["tool_calls"]
    name, arguments = call["function"]["name"], call["function"]["arguments"]
    if isinstance(block.calls, JsonCalls):
        typed = _with_type(text, name)
        yield from [Variation('with a "type" key first', typed)] if typed != text else ()
    bare = _without_id(block, text, call["id"])
    yield from [Variation("without an id", bare)] if bare != text else ()
    key, value = next(iter(arguments.items()))
    lost = _without_close(block, text, key, value)
    yield from [Variation("with an argument that is not closed", lost, sound=False)] if lost != text else ()


def _with_type(text: str, name: str) -> str:
    """The text with a `type` as the first key of the innermost object around the name."""
    offset = text.rfind("{", 0, text.find(f'"{name}"') + 1)
    value, _ = json_at(text, offset) if offset >= 0 else (None, 0)
    is_call = isinstance(value, dict) and name in value.values()
    return f'{text[:offset]}{{"type": "function", {text[offset + 1 :]}' if is_call else text


def _without_id(block: Block, text: str, call_id: str) -> str:
    calls = block.calls
    if isinstance(calls, JsonCalls):
        return re.sub(rf'"\w+"\s*:\s*"{re.escape(call_id)}"\s*,\s*|,\s*"\w+"\s*:\s*"{re.escape(call_id)}"', "", text)
    if not isinstance(calls, NamedCalls) or calls.name_in_id:
        return text
    if ID in calls.open:
        return text.replace(call_id, "", 1)
    parts = [piece for piece in pieces(calls.between) if not piece.isspace()]
    index = parts.index(ID) if ID in parts else 0
    marked = re.escape(parts[index - 1]) if index else "(?!)"
    return re.sub(rf"{marked}\s*{re.escape(call_id)}", "", text, count=1) if parts[index + 1 :] else text


def _without_close(block: Block, text: str, key: str, value: str) -> str:
    """The text without the end marker of the first argument, which has the key and value."""
    spelling = block.calls.arguments if isinstance(block.calls, NamedCalls) else None
    if isinstance(spelling, AsPairs):
        close = loose(spelling.close)
    elif isinstance(spelling, AsKeyTags):
        close = loose(spelling.close) + re.escape(key) + loose(spelling.end)
    else:
        return text
    return re.sub(rf"({re.escape(value)}\s*){close}", r"\1", text, count=1)
