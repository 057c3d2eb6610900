"""Which spelling of calls a template has: derived from calls with sentinels, trusted once it reads others back."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from agentrl.render.formats.arguments import Arguments, AsBareKeys, AsJson, AsPairs
from agentrl.render.formats.json_calls import JsonCalls
from agentrl.render.formats.named_calls import NamedCalls
from agentrl.render.read.calls import Block
from agentrl.render.read.json_value import Unread, json_at
from agentrl.render.read.lexer import Lexer, pieces
from agentrl.render.template import Template
from agentrl.types import JSON

KNOWN: Mapping[str, JSON] = {"city": 'Zürich "x"\n', "days": [1, 2.5, None, True], "where": {"a": "{}"}}
"""Arguments of a known call: whatever quoting or nesting may break."""

Wrap = tuple[str, str, str, str]
"""Around calls: the block's opening, the call's own, the call's end, the block's."""


def known_call(count: int = 1, content: str = "") -> dict[str, Any]:
    """An assistant message with `count` calls whose reading is known."""
    return _turn(content, [("lookup", {**KNOWN, "i": i}) for i in range(count)])


def derive(template: Template, sampled: Callable[[dict[str, Any]], str], parallel: bool, content: str) -> Block | None:
    """The format of the calls in what `sampled` makes of a message: a turn without its stop token and its thoughts.

    None if no candidate reads back what was written.
    """
    counts = (1, 2) if parallel else (1,)
    probes = [sampled(_turn(content, [_sentinels(i) for i in range(n)])) for n in counts]
    written = [template.encode(sampled(known_call(n, content))) for n in counts]
    for block in _candidates(probes):
        lexer = Lexer(template, block.markers)
        if all(_reads_back(block, lexer, tokens, n) for n, tokens in zip(counts, written, strict=True)):
            return block
    return None


def _turn(content: str, calls: Sequence[tuple[str, Mapping[str, JSON]]]) -> dict[str, Any]:
    written = [
        {"id": f"call0000{i}", "type": "function", "function": {"name": name, "arguments": dict(arguments)}}
        for i, (name, arguments) in enumerate(calls)
    ]
    return {"role": "assistant", "content": content, "tool_calls": written}


def _sentinels(i: int) -> tuple[str, dict[str, JSON]]:
    return f"zqname{i}", {f"zqkeya{i}": f"zqvala{i}", f"zqkeyb{i}": f"zqvalb{i}"}


def _candidates(probes: Sequence[str]) -> Iterator[Block]:
    yield from _json_calls(probes)
    yield from _named_calls(probes)


def _json_calls(probes: Sequence[str]) -> Iterator[Block]:
    """Calls that are JSON objects with the name inside."""
    found = [_objects(text) for text in probes]
    if any(len(objects) != n + 1 for n, objects in enumerate(found)):
        return
    opening, call_open, call_close, closing = _wrap(probes, [[(a, b) for a, b, _ in objects] for objects in found])
    keys = {json.dumps(value): key for key, value in found[0][0][2].items()}
    name, arguments = _sentinels(0)
    name_key = keys.get(json.dumps(name), "")
    arguments_key = keys[json.dumps(arguments)] if name_key else ""  # else the name itself is the key
    in_block = bool(opening)
    if not opening and call_open and "[" in call_open[-1:]:  # one call at a time, in a list of one
        opening, closing, call_open, call_close, in_block = call_open, call_close, "", "", True
    calls = JsonCalls(call_open, call_close, name_key, arguments_key, keys.get('"call00000"', ""), in_block)
    yield Block(calls, opening, closing)


def _objects(text: str) -> list[tuple[int, int, dict[str, Any]]]:
    """The outermost JSON objects that hold a sentinel's name and arguments, or the arguments under the name."""
    found, at = list[tuple[int, int, dict[str, Any]]](), 0
    while (at := text.find("{", at)) >= 0:
        value, end = json_at(text, at)
        name, arguments = _sentinels(len(found))
        holds = isinstance(value, dict) and arguments in value.values() and name in (*value, *_texts(value))
        if holds:
            found.append((at, end, value))
        at = end if holds else at + 1
    return found


def _texts(value: Mapping[str, Any]) -> list[str]:
    return [item for item in value.values() if isinstance(item, str)]


def _named_calls(probes: Sequence[str]) -> Iterator[Block]:
    """Calls whose name stands before their arguments."""
    for spans, between, arguments in (_as_json(probes), _as_pairs(probes), _as_bare_keys(probes)):
        if spans:
            opening, call_open, call_close, closing = _wrap(probes, spans)
            if not (opening or call_open):
                continue  # a word and a brace: text
            yield Block(NamedCalls(call_open, between, call_close, arguments), opening, closing)


Found = tuple[list[list[tuple[int, int]]], str, Arguments]
_NOTHING: Found = ([], "", AsJson())


def _as_json(probes: Sequence[str]) -> Found:
    spans, betweens = list[list[tuple[int, int]]](), list[str]()
    for n, text in enumerate(probes):
        spans.append([])
        for i in range(n + 1):
            name, arguments = _sentinels(i)
            start = text.find(name)
            brace = text.find("{", start)
            value, end = json_at(text, brace) if 0 <= start < brace else (Unread(""), 0)
            if value != arguments:
                return _NOTHING
            spans[-1].append((start, end))
            betweens.append(text[start + len(name) : brace].replace(f"call0000{i}", "{id}"))
    if len(set(betweens)) > 1:  # a number that counts the calls
        betweens = [re.sub(r"\d+", "{n}", between) for between in betweens]
    return (spans, betweens[0], AsJson()) if len(set(betweens)) == 1 else _NOTHING


def _as_pairs(probes: Sequence[str]) -> Found:
    spans = list[list[tuple[int, int]]]()
    for n, text in enumerate(probes):
        places = [_places(text, i) for i in range(n + 1)]
        if any(place is None for place in places):
            return _NOTHING
        spans.append([(place[0], place[-1] + len("zqvalb0")) for place in places if place is not None])
    text, place = probes[0], _places(probes[0], 0)
    if place is None:
        return _NOTHING
    ends = [at + len(word) for at, word in zip(place, _words(0), strict=True)]
    first, between, second = (text[a:b] for a, b in zip(ends[:3], place[1:4], strict=True))
    after = text[ends[-1] :]
    opening = _common_end(first, second)
    closing = _common_start(second[: len(second) - len(opening)], after)
    spans = [[(a, b + len(closing)) for a, b in row] for row in spans]
    return spans, first[: len(first) - len(opening)], AsPairs(opening, between, closing)


def _as_bare_keys(probes: Sequence[str]) -> Found:
    spans, quote = list[list[tuple[int, int]]](), ""
    for n, text in enumerate(probes):
        spans.append([])
        for i in range(n + 1):
            place = _places(text, i)
            if place is None or text[place[0] + len("zqname0") : place[1]] != "{":
                return _NOTHING
            quote = text[place[1] + len("zqkeya0") : place[2]].removeprefix(":")
            end = text.find("}", place[-1])
            if not quote or end < 0:
                return _NOTHING
            spans[-1].append((place[0], end + 1))
    return spans, "", AsBareKeys(quote)


def _words(i: int) -> list[str]:
    name, arguments = _sentinels(i)
    return [name, *(str(word) for pair in arguments.items() for word in pair)]


def _places(text: str, i: int) -> list[int] | None:
    """Where the i-th call's name, keys and values stand, if in this order."""
    places = [text.find(word) for word in _words(i)]
    return places if places[0] >= 0 and places == sorted(places) else None


def _wrap(probes: Sequence[str], spans: Sequence[Sequence[tuple[int, int]]]) -> Wrap:
    """What stands around calls, told apart by what two calls in one turn have between them."""
    before, after = probes[0][: spans[0][0][0]], probes[0][spans[0][0][1] :]
    before = before.rpartition("zqsaid")[2]
    if len(probes) == 1:
        return "", before.strip(), after.strip(), ""
    (_, end), (start, _) = spans[1][:2]
    inner = probes[1][end:start]
    call_open = _common_end(before, inner)
    call_close = _common_start(inner[: len(inner) - len(call_open)], after)
    opening = before[: len(before) - len(call_open)]
    return opening.strip(), call_open.strip(), call_close.strip(), after[len(call_close) :].strip()


def _common_start(left: str, right: str) -> str:
    common = list[str]()
    for ours, theirs in zip(pieces(left), pieces(right), strict=False):
        if ours != theirs:
            break
        common.append(ours)
    return "".join(common)


def _common_end(left: str, right: str) -> str:
    common = list[str]()
    for ours, theirs in zip(reversed(pieces(left)), reversed(pieces(right)), strict=False):
        if ours != theirs:
            break
        common.insert(0, ours)
    return "".join(common)


def _reads_back(block: Block, lexer: Lexer, tokens: Sequence[int], count: int) -> bool:
    lexed, at, read = lexer(tokens), 0, list[Any]()
    while (start := block.find(lexed, at)) is not None and len(read) < count:
        attempts = block.read(lexed, start, {})
        read += [(attempt.error, attempt.name, attempt.arguments) for attempt in attempts]
        at = attempts[-1].stop
    wanted = [(None, "lookup", {**KNOWN, "i": i}) for i in range(count)]
    return read == wanted and not lexed.text[at:].strip()
