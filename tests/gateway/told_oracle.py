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

from agentrl.chat.request import Call, Entry
from agentrl.types import Action, Raw

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
    "Claude Code begins": [S(), S("x", joined=True), U(), U("x", joined=True), S("long")],
    "Codex begins": [D("long"), D(), U(), U()],
    "system and developer": [S(), D(), U()],
    "only a system message": [S()],
    "only a developer message": [D()],
    "users in a row": [U(), U(), U()],
    "a later system message": [U(), S(), A(), U()],
    "a later developer message": [S(), U(), A(), U(), D()],
    "examples": [S(), U(), A(), U(), A(), U()],
    "got it": [S(), U(), A(), U(), U()],
    "assistants in a row": [U(), A(), A(), U()],
    "it ends in an assistant": [U(), A()],
    "the assistant begins": [S(), A(), U()],
    "an example with a call": [S(), U(), A("", "toolu_1"), T("toolu_1"), A(), U()],
    "calls beside text": [U(), A("x", "toolu_1"), T("toolu_1"), U()],
    "two calls": [U(), A("", "call_a", "call_b"), T("call_a"), T("call_b"), A(), U()],
    "two calls, another order": [U(), A("x", "call_a", "call_b"), T("call_b"), T("call_a")],
    "two calls behind a turn": [U(), A(), U(), A("x", "c1", "c2"), T("c1"), T("c2"), A("", "c3", "c4"), U()],
    "reminders behind a result": [S(), U(), A("", "c1"), T("c1"), S("long"), D()],
    "a reminder between results": [U(), A("", "c1", "c2"), T("c1"), S(), T("c2")],
    "a user behind a result": [U(), A("", "c1"), T("c1"), U(), U("x", joined=True)],
    "a call without a result": [U(), A("", "c1"), U(), A(), U()],
    "a result without a call": [U(), A(), T("c1", "x")],
    "a result at the head": [S(), T("c1", "x"), U()],
    "a result behind a user": [U(), T("c1", "x")],
    "a result of another call": [U(), A("", "c1"), T("c1"), T("c9", "x")],
    "empty texts": [S(""), U(), A("", "c1"), T("c1", ""), U("")],
    "a summary": [S(), U(), A("", "c1"), T("c1"), S()],
}


def behind_a_reply(entries: Sequence[Entry], at: int, text: str, *, head_again: bool = False) -> str:
    """As `misplaced`, of the tokens that were added behind the reply at `at`."""
    heading = next((i for i, e in enumerate(entries) if e.role not in ("system", "developer")), len(entries))
    known = set(_words(entries[:heading])) if head_again else set[str]()
    added = " ".join(word for word in WORD.findall(text) if word not in known)
    return misplaced([E("user", ""), *entries[at + 1 :]], added)


def reply(renderer: Any, entry: Entry) -> tuple[Action, list[int], dict[str, str]]:
    """The entry as a sampled reply: its action, its tokens, and its ids on the wire -> those of the action.

    Its tokens are not those that its text would be encoded to.
    """
    calls = [
        {"id": f"k0000000{i}", "type": "function", "function": {"name": c.name, "arguments": dict(c.arguments)}}
        for i, c in enumerate(entry.calls)
    ]
    if not renderer.certificate.capabilities["parallel_calls"]:
        calls = calls[:1]
    said: dict[str, Any] = {"role": "assistant", "content": entry.text}
    if calls:
        said = {"role": "assistant", "content": "", "tool_calls": calls}
    tokens = renderer.encode(said)
    for letter in reversed(entry.text if calls else ""):
        tokens = [*renderer.prompt(Raw(letter)).tokens, *tokens]
    action = renderer.parse(tokens, "stop", tokens[-1])
    return action, tokens, {c.id: made.id for c, made in zip(entry.calls, action.calls, strict=False)}
