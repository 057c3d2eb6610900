"""Find the reply that is the agent's answer, by comparing the replies with the result of the agent's `run`."""

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
"""Keys of a result that usually hold the answer."""
_OTHER_KEYS = ("stderr", "error", "killed", "traceback", "log", "logs")
"""Keys of a result that hold no answer."""
_FENCE = re.compile(r"```[^\n`]*\n(.*?)\n?\s*```", re.DOTALL)
_MARKS = re.compile(r"[*`]+|^#+ |^> ", re.MULTILINE)
"""Marks of Markdown, which programs may remove from a reply."""
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_STOPS = " .!)"
"""Characters that may follow an answer at the end of a reply."""
_LONG = 40
"""Length in characters from which on a text may begin or end within a word."""
_SHORT = 3
"""Length in characters below which a text within a reply is no evidence."""


def plain(text: str) -> str:
    """The plain form of a text for comparisons: without a thought and marks of Markdown, in lower case, with single
    spaces."""
    return " ".join(_MARKS.sub("", thoughtless(text)).casefold().split())


def holds(text: str, part: str) -> bool:
    """Whether `part` occurs in a text, neither beginning nor ending within a word."""
    before = r"(?<!\w)" if part[:1].isalnum() else ""
    after = r"(?!\w)" if part[-1:].isalnum() else ""
    return bool(part) and part in text and re.search(before + re.escape(part) + after, text) is not None


class _ReplyForms:
    """A reply, and the forms in which a program may return the reply as its result."""

    def __init__(self, node: Node) -> None:
        assert node.sent is not None
        self.node, self._text, self._calls = node, thoughtless(node.sent.text), node.sent.calls
        self.text = plain(node.sent.text)

    @cached_property
    def values(self) -> list[JSON]:
        """JSON values in a reply: the whole text or a fenced part as JSON, and the arguments of the calls."""
        texts = [self._text, *_FENCE.findall(self._text)]
        called = [call.arguments for call in self._calls]
        return [
            *filter(None, map(_container, texts)),
            *(dict(arguments) for arguments in called if isinstance(arguments, Mapping)),
        ]

    @cached_property
    def parts(self) -> list[str]:
        """Parts of a reply that programs extract, in plain form: fenced blocks, the values of JSON, and a boxed
        answer."""
        leaves = [plain(str(leaf)) for value in self.values for _, leaf in _leaves(value)]
        return [*(plain(block) for block in _FENCE.findall(self._text)), *leaves, *map(plain, _boxed(self._text))]

    @cached_property
    def last_number(self) -> str:
        """The last number in the reply, without thousands separators."""
        numbers = _NUMBER.findall(self._text)
        return numbers[-1].replace(",", "") if numbers else ""


@dataclass(frozen=True, slots=True)
class Claim:
    """A text or number in an agent's result, which may come from a reply."""

    text: str
    """The value as text in plain form."""
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
        """Whether the value is a part that a program would extract from the reply."""
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
    """Whether a result holds any text. A number or a flag need not come from a reply."""
    return any(isinstance(leaf, str) and leaf.strip() for _, leaf in _answers(result))


def answer_of(result: JSON, nodes: Sequence[Node], likely: Collection[Node], *, sure: bool = False) -> Node | None:
    """The reply that equals a result, is quoted in the result, or contains the result. None without such a reply.

    If several replies fit, the latest reply that equals the result is the answer. Otherwise replies in `likely` are
    preferred. Among replies quoted in a text, the last quote is the answer, else the latest reply. `sure`: other
    evidence shows the main conversation, so a result of 0 or 1 is ignored as a possible exit code.
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
    """The reply that equals a claim, else a reply quoted in a claim, else a reply from which a claim was extracted."""
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
    """The last reply that is in `likely`, or else the last reply."""
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
    """Whether a leaf is a flag: null, true or false, or with `sure` an exit code of 0 or 1."""
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
    """Yield the texts and numbers at any depth of a value, each with the nearest key."""
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
