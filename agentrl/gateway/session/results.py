"""Finds the agent's answer: the reply that equals the result of `run`, wholly or in part."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from agentrl.gateway.session.matching import canonical, thoughtless
from agentrl.gateway.session.nodes import Node
from agentrl.types import JSON

_ANSWER_KEYS = (
    "answer",
    "final_answer",
    "final",
    "final_output",
    "result",
    "output",
    "solution",
    "prediction",
    "response",
    "reply",
    "text",
    "content",
    "stdout",
)
"""Keys of a result that most often hold the answer."""
_OTHER_KEYS = ("stderr", "error", "killed", "traceback", "log", "logs")
"""Keys of a result that hold no answer."""
_FENCE = re.compile(r"```[^\n`]*\n(.*?)\n?\s*```", re.DOTALL)
_MARKS = re.compile(r"[*`]+|^#+ |^> ", re.MULTILINE)
"""Marks of Markdown that programs take away."""
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_STOPS = " .!)"
"""Text after an answer at the end of a reply."""
_LONG = 40
"""From this length on, a text may be cut within a word."""
_SHORT = 3
"""Below this length, in characters, a text within a reply is no evidence."""


def plain(text: str) -> str:
    """A text for comparison: without a thought, marks of Markdown, case, and differences of spaces."""
    return " ".join(_MARKS.sub("", thoughtless(text)).casefold().split())


def holds(text: str, part: str) -> bool:
    """Whether a text holds a part that neither begins nor ends within a word."""
    before = r"(?<!\w)" if part[:1].isalnum() else ""
    after = r"(?!\w)" if part[-1:].isalnum() else ""
    return bool(part) and part in text and re.search(before + re.escape(part) + after, text) is not None


class _ReplyForms:
    """A reply, in the forms of a program's result."""

    def __init__(self, node: Node) -> None:
        assert node.sent is not None
        self.node, self._text, self._calls = node, thoughtless(node.sent.text), node.sent.calls
        self.text = plain(node.sent.text)

    @cached_property
    def values(self) -> list[JSON]:
        """The reply's JSON: the whole text or a fenced part, and the arguments of the calls."""
        texts = [self._text, *_FENCE.findall(self._text)]
        called = [call.arguments for call in self._calls]
        return [
            *filter(None, map(_container, texts)),
            *(dict(arguments) for arguments in called if isinstance(arguments, Mapping)),
        ]

    @cached_property
    def parts(self) -> list[str]:
        """Parts that programs extract: fenced blocks, the values of JSON, and a boxed answer."""
        leaves = [plain(str(leaf)) for value in self.values for _, leaf in _leaves(value)]
        return [*(plain(block) for block in _FENCE.findall(self._text)), *leaves, *map(plain, _boxed(self._text))]

    @cached_property
    def last_number(self) -> str:
        """The last number, without separators."""
        numbers = _NUMBER.findall(self._text)
        return numbers[-1].replace(",", "") if numbers else ""


@dataclass(frozen=True, slots=True)
class Claim:
    """One text or value of a result."""

    text: str
    """The text in plain form."""
    value: JSON
    number: bool = False

    @classmethod
    def of(cls, value: JSON) -> Claim:
        number = isinstance(value, int | float)
        text = f"{value:g}" if isinstance(value, float) and value == int(value) else str(value)
        return cls(plain(text), value, number)

    def equals(self, reply: _ReplyForms) -> bool:
        return self.text == reply.text or self.text in map(plain, _arguments(reply.node))

    def holds(self, reply: _ReplyForms) -> bool:
        return not self.number and any(map(str.isalnum, reply.text)) and holds(self.text, reply.text)

    def taken_from(self, reply: _ReplyForms) -> bool:
        """Whether the claim is an extracted part of the reply."""
        if self.text in reply.parts:
            return True
        if self.number:
            return self.text == reply.last_number
        ending, part = reply.text.rstrip(_STOPS), self.text.rstrip(_STOPS)
        return ending.endswith(part) and holds(ending[-len(part) - 1 :], part)

    def within(self, reply: _ReplyForms) -> bool:
        if self.number or len(self.text) < _SHORT:
            return False
        return self.text in reply.text if len(self.text) >= _LONG else holds(reply.text, self.text)


def claims_text(result: JSON) -> bool:
    """Whether a result holds text from a reply: a number or a flag may be anything."""
    return any(isinstance(leaf, str) and leaf.strip() for _, leaf in _answers(result))


def answer_of(result: JSON, nodes: Sequence[Node], likely: Collection[Node], *, sure: bool = False) -> Node | None:
    """The reply that a result equals or holds, or that holds the result. None without such a reply.

    Several replies may fit. The latest reply equal to the result is the answer. Otherwise replies in `likely` come
    first. Among replies quoted in a text, the last quote is the answer, else the latest reply. `sure`: other evidence
    names the main line. Then a result of 0 or 1 is not read: 0 or 1 may be an exit code.
    """
    replies = [
        _ReplyForms(node) for node in nodes if node.sent is not None and (node.sent.text.strip() or node.sent.calls)
    ]
    whole = [reply for reply in replies if _same(result, reply)]
    if whole:
        return whole[-1].node
    claims = [*_claims(result, sure=sure)]
    strong = (_strongest(group, replies, likely) for group in claims)
    weak = (_most(group, Claim.within, replies, likely) for group in claims)
    return next(filter(None, (*strong, *weak)), None)


def _strongest(claims: Sequence[Claim], replies: Sequence[_ReplyForms], likely: Collection[Node]) -> Node | None:
    """The reply equal to a claim, or a reply quoted in a claim, or the source of a claim."""
    if equal := [reply for reply in replies if any(claim.equals(reply) for claim in claims)]:
        return equal[-1].node
    if quoted := [reply for reply in replies if any(claim.holds(reply) for claim in claims)]:
        longest = max(len(reply.text) for reply in quoted)
        quoted = [reply for reply in quoted if 2 * len(reply.text) >= longest]
        if len(claims) == 1:
            quoted.sort(key=lambda reply: claims[0].text.rfind(reply.text))
        return _last(quoted, likely)
    return _most(claims, Claim.taken_from, replies, likely)


def _most(
    claims: Sequence[Claim],
    fits: Callable[[Claim, _ReplyForms], bool],
    replies: Sequence[_ReplyForms],
    likely: Collection[Node],
) -> Node | None:
    """The reply that fits most claims. None without any fit."""
    counts = [sum(fits(claim, reply) for claim in claims) for reply in replies]
    most = max(counts, default=0)
    return (
        _last([reply for reply, count in zip(replies, counts, strict=True) if count == most], likely) if most else None
    )


def _last(replies: Sequence[_ReplyForms], likely: Collection[Node]) -> Node:
    """The last reply of `likely`, or else the last reply."""
    return ([reply for reply in replies if reply.node in likely] or [*replies])[-1].node


def _claims(result: JSON, *, sure: bool) -> Iterator[list[Claim]]:
    """The claims of a result, the most likely answers first."""
    leaves = [(key, leaf) for key, leaf in _answers(result) if not _is_flag(leaf, sure=sure)]
    claims = [(key.casefold(), claim) for key, leaf in leaves if (claim := Claim.of(leaf)).text]
    for name in _ANSWER_KEYS:
        yield [claim for key, claim in claims if key == name]
    yield [claim for _, claim in claims if not claim.number]
    yield [claim for _, claim in claims if claim.number]


def _is_flag(leaf: JSON, *, sure: bool) -> bool:
    """Whether a leaf is no text and no number: null, true or false, or with `sure` an exit code of 0 or 1."""
    return leaf is None or isinstance(leaf, bool) or (sure and leaf in (0, 1))


def _same(result: JSON, reply: _ReplyForms) -> bool:
    """Whether a result is the whole reply: as JSON, or as lines."""
    if isinstance(result, str):
        value = _container(result)
        return value is not None and any(canonical(value) == canonical(candidate) for candidate in reply.values)
    if isinstance(result, list) and result and all(isinstance(line, str) for line in result):
        lines: Sequence[str] = result
        if plain("\n".join(lines)) == reply.text:
            return True
    return (
        bool(result) and _full(result) and any(canonical(result) == canonical(candidate) for candidate in reply.values)
    )


def _full(value: Any) -> bool:
    """Whether a value is a mapping or a list, and not empty."""
    return isinstance(value, Mapping | list) and bool(value)


def _container(text: str) -> JSON:
    """The text as a JSON object or list. None for other text, and for an empty object or list."""
    if text.strip()[:1] not in ("{", "["):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if _full(value) else None


def _leaves(value: JSON, key: str = "") -> Iterator[tuple[str, JSON]]:
    """The texts and numbers in a value, each with the nearest key."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _leaves(item, str(name))
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for item in value:
            yield from _leaves(item, key)
    else:
        yield key, value


def _answers(result: JSON) -> Iterator[tuple[str, JSON]]:
    """The leaves of a result that may hold an answer."""
    return ((key, leaf) for key, leaf in _leaves(result) if key.casefold() not in _OTHER_KEYS)


def _arguments(node: Node) -> Iterator[str]:
    """The texts in the arguments of a reply's calls."""
    for call in node.sent.calls if node.sent is not None else ():
        yield from (leaf for _, leaf in _leaves(call.arguments) if isinstance(leaf, str))


def _boxed(text: str) -> Iterator[str]:
    r"""The content of each \boxed{...}."""
    for opened in re.finditer(r"\\boxed\s*\{", text):
        depth = 1
        for end in range(opened.end(), len(text)):
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            if not depth:
                yield text[opened.end() : end]
                break
