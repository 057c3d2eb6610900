"""An oracle for the writing of prompts: numbered words are counted again in the tokens.

It shares no code with `agentrl.gateway` nor `agentrl.render`. Every text of a conversation is made of words that occur
nowhere else. The tokens are decoded, and each word must stand there once, in the order in which the client told them.
What stands at the head may be moved as a whole: some templates write their system message before the last user's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from agentrl.gateway.request import Call, Entry

WORD = re.compile(r"zq\d+(?!\d)")
LONG = 20_000
"""Characters of the longest instructions that clients send: Codex 20 kB, Claude Code 9 kB beside its system prompt."""

E = Entry


def call(call_id: str) -> Call:
    return Call(call_id, "lookup", {"query": f"for {call_id}"})


@dataclass(slots=True)
class Words:
    """Texts of words that occur once."""

    numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def text(self, size: int = 0) -> str:
        words, left = list[str](), size
        while not words or left > 0:
            words.append(f"zq{next(self.numbers)}")
            left -= len(words[-1]) + 1
        return " ".join(words)


def spelled(shape: Sequence[Entry]) -> list[Entry]:
    """The shape with texts: "long" has 20 kB of words, an empty text stays empty."""
    words = Words()
    return [
        replace(entry, text=words.text(LONG if entry.text == "long" else 12) if entry.text else "") for entry in shape
    ]


def misplaced(entries: Sequence[Entry], text: str, *, head_again: bool = False) -> str:
    """What is wrong with `text`, the decoded tokens; empty if each word stands there once and in order.

    With `head_again` the head may stand there several times: Mistral Nemo repeats it in the last user message.
    """
    heading = next((i for i, e in enumerate(entries) if e.role not in ("system", "developer")), len(entries))
    head, wanted, found = _words(entries[:heading]), _words(entries[heading:]), WORD.findall(text)
    at_head = set(head)
    instructions = [word for word in found if word in at_head]
    if head_again and head:
        instructions = instructions[: max(len(head), len(instructions) % len(head))]
    return _difference(head, instructions) or _difference(wanted, [word for word in found if word not in at_head])


def _words(entries: Iterable[Entry]) -> list[str]:
    return [word for entry in entries for word in WORD.findall(entry.text)]


def _difference(wanted: list[str], found: list[str]) -> str:
    if wanted == found:
        return ""
    lacking, twice = set(wanted) - set(found), len(found) - len(set(found))
    at = next((i for i, (a, b) in enumerate(zip(wanted, found, strict=False)) if a != b), -1)
    return f"{len(lacking)} words lost, {twice} repeated, first difference at word {at} of {len(wanted)}"


S, D, U, A, T = (
    lambda text="x", **more: E("system", text, **more),
    lambda text="x", **more: E("developer", text, **more),
    lambda text="x", **more: E("user", text, **more),
    lambda text="x", *ids, **more: E("assistant", text, calls=tuple(map(call, ids)), **more),
    lambda call_id, text="x", **more: E("tool", text, call_id=call_id, **more),
)  # fmt: skip

ROOTS: Mapping[str, list[Entry]] = {
    "a user": [U()],
    "Claude Code begins": [S(), S("x", joined=True), S("long", joined=True), U(), U("x", joined=True), S("long")],
    "Codex begins": [D("long"), D(), U(), U()],
    "system and developer": [S("long"), D("long"), U()],
    "only a system message": [S("long")],
    "only a developer message": [D("long")],
    "users in a row": [U(), U(), U()],
    "a later system message": [U(), S("long"), A(), U()],
    "a later developer message": [S(), U(), A(), U(), D("long")],
    "examples": [S(), U(), A(), U(), A(), U()],
    "got it": [S("long"), U(), A(), U(), U()],
    "assistants in a row": [U(), A(), A(), U()],
    "it ends in an assistant": [U(), A()],
    "the assistant begins": [S(), A(), U()],
    "an example with a call": [S(), U(), A("", "toolu_1"), T("toolu_1"), A(), U()],
    "calls beside text": [U(), A("x", "toolu_1"), T("toolu_1"), U()],
    "two calls": [U(), A("", "call_a", "call_b"), T("call_a"), T("call_b"), A(), U()],
    "two calls, another order": [U(), A("x", "call_a", "call_b"), T("call_b"), T("call_a")],
    "reminders behind a result": [S(), U(), A("", "c1"), T("c1", "long"), S("long"), D()],
    "a reminder between results": [U(), A("", "c1", "c2"), T("c1"), S("long"), T("c2")],
    "a user behind a result": [U(), A("", "c1"), T("c1"), U("long"), U("x", joined=True)],
    "a call without a result": [U(), A("", "c1"), U("long"), A(), U()],
    "a result without a call": [U(), A(), T("c1", "long")],
    "a result at the head": [S(), T("c1", "long"), U()],
    "a result behind a user": [U(), T("c1", "long")],
    "a result of another call": [U(), A("", "c1"), T("c1"), T("c9", "long")],
    "empty texts": [S(""), U(), A("", "c1"), T("c1", ""), U("")],
    "a summary": [S("long"), U("long"), A("", "c1"), T("c1"), S("long")],
}


def known_at(entries: Sequence[Entry]) -> list[int]:
    return [i for i, entry in enumerate(entries) if entry.role == "assistant"]


def replies(renderer: Any, entries: Sequence[Entry], places: Iterable[int]) -> dict[int, Any]:
    """These entries as sampled replies, their tokens such that no render of theirs would be equal."""
    found = {}
    for at in places:
        calls = [
            {"id": f"k{at:04}{i:04}", "type": "function", "function": {"name": c.name, "arguments": dict(c.arguments)}}
            for i, c in enumerate(entries[at].calls)
        ]
        message: dict[str, Any] = {"role": "assistant", "content": "" if calls else entries[at].text}
        if calls:
            message["tool_calls"] = calls[:1] if not renderer.certificate.capabilities["parallel_calls"] else calls
        tokens = renderer.encode(message)
        found[at] = (renderer.parse(tokens, "stop", tokens[-1]), tokens)
    return found
