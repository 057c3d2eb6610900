"""Convert a client's conversation to messages that the chat template can carry.

A client may use roles, positions and ids that a template silently drops or refuses. Each entry is converted to the
nearest form that the template keeps, according to the template's certificate. No entry is left out or moved.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, TypeAlias

from agentrl.chat.request import Call, Entry
from agentrl.plain import text, to_json
from agentrl.render.ids import has_name, plain_id
from agentrl.render.results import CallKey, answered, ordered
from agentrl.types import Message, ToolSpec

REMINDER = "<system-reminder>\n{}\n</system-reminder>"
"""The user text for instructions that cannot be in the system message."""
BLANK = "\n\n"
Content: TypeAlias = "str | Sequence[Mapping[str, str]]"
"""A message's content: text, or texts and images as parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryConverter:
    """What a template supports, for converting entries to messages."""

    capabilities: Mapping[str, bool]
    """Capability -> whether the template has the capability, from the template's certificate."""
    deferred: Mapping[str, ToolSpec] = field(default_factory=dict)
    """Deferred tools by name. A tool's result may load a deferred tool."""
    results: str = "place"
    """The way in which the template links a result to its call, from `Certificate.results`: "id" links by the call's
    id."""
    careful: bool = False
    """Whether to use only roles and positions that every template supports, because the certificate may not cover this
    case."""

    def carries(self, capability: str) -> bool:
        return self.capabilities.get(capability, False)


def to_messages(
    entries: Sequence[Entry],
    forms: EntryConverter,
    ids: Mapping[str, str],
    *,
    root: bool = False,
    calls: Mapping[str, str] | None = None,
) -> list[Message]:
    """Convert entries to messages.

    `ids` maps the client's id of a call to the id in the tokens. `calls` maps the ids of the previous turn's calls to
    the tools' names. `root`: the conversation begins with these entries.
    """
    making = _MessageBuilder(forms, ids, root, dict(calls or {}))
    for entry in _in_call_order(entries, ids, calls or {}, by_id=forms.results == "id"):
        making.add(entry)
    return list(making.messages)


def _in_call_order(
    entries: Sequence[Entry], ids: Mapping[str, str], calls: Mapping[str, str], *, by_id: bool
) -> Sequence[Entry]:
    """The entries, with missing ids of results filled in. Unless `by_id`, the results of each turn are put in the order
    of the calls."""
    if not any(entry.role == "tool" for entry in entries):
        return entries
    turns = [i for i, entry in enumerate(entries) if entry.role == "assistant"]
    before = [CallKey(call_id, name) for call_id, name in calls.items()]
    conversation = list[Entry]()
    for start, end in pairwise([0, *turns, len(entries)]):
        if start < end and entries[start].role == "assistant":
            before = [CallKey(ids.get(call.id, call.id), call.name) for call in entries[start].calls]
        conversation += _answers_in_order(entries[start:end], ids, before, by_id)
    return conversation


def _answers_in_order(
    entries: Sequence[Entry], ids: Mapping[str, str], calls: Sequence[CallKey], by_id: bool
) -> Sequence[Entry]:
    call_ids = {call.id for call in calls}
    places = [i for i, entry in enumerate(entries) if entry.role == "tool"]
    keys = [CallKey(_plain_unless(ids.get(entries[i].call_id, entries[i].call_id), call_ids), "") for i in places]
    numbers = dict(zip(places, answered(calls, keys), strict=True))
    results = [
        replace(entry, call_id=calls[number].id) if number is not None and not entry.call_id else entry
        for entry, number in ((entry, numbers.get(i)) for i, entry in enumerate(entries))
    ]
    return results if by_id else ordered(results, [numbers.get(i) for i in range(len(results))])


def _plain_unless(call_id: str, call_ids: Container[str]) -> str:
    """The id unchanged if it is empty or in `call_ids`, else its plain form."""
    return call_id if call_id in call_ids or not call_id else plain_id(call_id)


@dataclass(slots=True)
class _MessageBuilder:
    """Builds a list of messages from entries."""

    forms: EntryConverter
    ids: Mapping[str, str]
    root: bool
    calls: dict[str, str]
    """Call id -> tool name, for the calls that a following result may answer."""
    messages: list[dict[str, Any]] = field(default_factory=list)
    heading: bool = True
    """Whether all entries so far are instructions."""

    def add(self, entry: Entry) -> None:
        if entry.role in ("system", "developer"):
            self._instruct(entry)
            return
        self.heading = False
        if entry.role == "assistant":
            self._assistant(entry)
        elif entry.role == "tool":
            self._result(entry)
        else:
            self._user(_content(entry), entry.joined)

    def _instruct(self, entry: Entry) -> None:
        instruction = text(entry.text)
        if not instruction.strip():
            return
        if not (self.root and self.heading and self.forms.carries("system")):
            self._user(REMINDER.format(instruction))
        elif self.messages:
            self.messages[-1]["content"] += BLANK + instruction
        else:
            self.messages.append({"role": "system", "content": instruction})

    def _user(self, content: Content, joined: bool = False) -> None:
        if not self._joins(joined):
            self.messages.append({"role": "user", "content": content})
        else:
            self.messages[-1]["content"] = _together(self.messages[-1]["content"], content)

    def _joins(self, joined: bool) -> bool:
        """Whether to append a user's text to the message before: the client sent both in the same message, or the
        template cannot carry two messages."""
        before = self.messages[-1]["role"] if self.messages else ""
        if before == "user":
            return joined or self.forms.careful or not self.forms.carries("users_in_a_row")
        return before == "tool" and not self.forms.carries("user_after_tool")

    def _result(self, entry: Entry) -> None:
        loaded = [json.dumps(self._loaded(name), ensure_ascii=False) for name in entry.loads]
        content = _together(_content(entry), "\n".join(loaded))
        wire = self.ids.get(entry.call_id, entry.call_id)
        call_id = wire if wire in self.calls else plain_id(wire)
        if not self._may_answer(call_id) or (entry.parts and not self.forms.carries("tool_images")):
            self._user(content)
            return
        name = self.calls.get(call_id) or "unknown"
        self.messages.append({"role": "tool", "tool_call_id": call_id, "name": name, "content": content})

    def _may_answer(self, call_id: str) -> bool:
        """Whether a result of this call may be a tool message here. Otherwise the result becomes user text."""
        if not self.forms.carries("tool_results"):
            return False
        if not self.forms.careful:
            return call_id in self.calls or self.forms.carries("orphan_tool")
        previous = self.messages[-1]["role"] if self.messages else "assistant"
        return call_id in self.calls and previous != "user"

    def _loaded(self, name: str) -> ToolSpec:
        return self.forms.deferred.get(name, {"name": name})

    def _assistant(self, entry: Entry) -> None:
        message = to_assistant_message(entry, self.ids)
        self.calls = {call["id"]: call["function"]["name"] for call in message.get("tool_calls", ())}
        self.messages.append(message)


def _content(entry: Entry) -> Content:
    """The text of an entry, or the texts and images as parts."""
    if not entry.parts:
        return text(entry.text)
    content: Content = ""
    for part in entry.parts:
        content = _together(content, text(part) if isinstance(part, str) else [part.part], "\n")
    return content


def _together(first: Content, second: Content, mark: str = BLANK) -> Content:
    """Two contents joined into a single content. `mark` separates two texts, but not a text and an image."""
    if isinstance(first, str) and isinstance(second, str):
        return mark.join(filter(None, (first, second)))
    before, after = _parts(first), _parts(second)
    if before and after and "text" in before[-1] and "text" in after[0]:
        middle = {"type": "text", "text": before[-1]["text"] + mark + after[0]["text"]}
        return [*before[:-1], middle, *after[1:]]
    return [*before, *after]


def _parts(content: Content) -> Sequence[Mapping[str, str]]:
    if not isinstance(content, str):
        return content
    return [{"type": "text", "text": content}] if content else []


def one_by_one(entries: Sequence[Entry], unsplit: Container[int] = ()) -> Iterator[tuple[int | None, Entry]]:
    """Split turns with several calls, for a template with one call per turn: each call is placed right before its
    result.

    Yields pairs: the index in `entries` (None for a call that was split from its turn), and the entry. Turns at the
    indices in `unsplit` are not split.
    """
    waiting = dict[str, Call]()
    for index, entry in enumerate(entries):
        if entry.role == "tool" and entry.call_id in waiting:
            yield None, Entry("assistant", calls=(waiting.pop(entry.call_id),))
            yield index, entry
            continue
        yield from ((None, Entry("assistant", calls=(call,))) for call in waiting.values())
        waiting = {}
        if entry.role == "assistant" and len(entry.calls) > 1 and index not in unsplit:
            waiting = {call.id: call for call in entry.calls}
            if entry.text:
                yield index, replace(entry, calls=())
        else:
            yield index, entry
    yield from ((None, Entry("assistant", calls=(call,))) for call in waiting.values())


def to_assistant_message(entry: Entry, ids: Mapping[str, str]) -> dict[str, Any]:
    """Convert an assistant entry to a message."""
    message: dict[str, Any] = {"role": "assistant", "content": text(entry.text)}
    if entry.reasoning is not None:
        message["reasoning_content"] = text(entry.reasoning)
    if entry.calls:
        message["tool_calls"] = [
            {
                "id": _id(ids.get(call.id, call.id), text(call.name)),
                "type": "function",
                "function": {"name": text(call.name), "arguments": _arguments(call)},
            }
            for call in entry.calls
        ]
    return message


def _id(call_id: str, name: str) -> str:
    """The id of a call in a message: unchanged if the id holds the tool's name and the call's number, else the plain
    form."""
    return call_id if has_name(call_id, name) else plain_id(call_id)


def _arguments(call: Call) -> Any:
    """The arguments as an object, which templates require. Other text is wrapped under the key `unreadable`."""
    if isinstance(call.arguments, str):
        return {"unreadable": text(call.arguments)} if call.arguments.strip() else {}
    return to_json(call.arguments, f"the arguments of {call.name}")
