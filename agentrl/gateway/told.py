"""What a client tells of a conversation, as messages that the chat template in hand can carry.

A client may use roles, places and ids that a template drops in silence or refuses. Each gets the form nearest to it
that the certificate says is carried: nothing is left out, and nothing changes its place.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentrl.gateway.request import Call, Entry
from agentrl.types import Message, ToolSpec

REMINDER = "<system-reminder>\n{}\n</system-reminder>"
"""Instructions that do not stand at the head of a conversation, as the user's text."""
BLANK = "\n\n"
_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"


@dataclass(slots=True)
class Told:
    """Messages in the making: add the entries one by one. `root`: the conversation begins here."""

    capabilities: Mapping[str, bool]
    deferred: Mapping[str, ToolSpec]
    ids: Mapping[str, str]
    """The id of a call on the wire -> the id that it has in the tokens."""
    root: bool
    calls: dict[str, str] = field(default_factory=dict)
    """Ids and names of the calls that a result may answer."""
    messages: list[dict[str, Any]] = field(default_factory=list)
    _heading: bool = True
    """Only instructions came so far."""

    def add(self, entry: Entry) -> None:
        """Raises TemplateError for what no message can hold."""
        if entry.role in ("system", "developer"):
            self._instruct(entry)
            return
        self._heading = False
        if entry.role == "assistant":
            self._assistant(entry)
        elif entry.role == "tool":
            self._result(entry)
        else:
            self._user(entry.text, entry.joined)

    def _instruct(self, entry: Entry) -> None:
        if not entry.text.strip():
            return
        if not (self.root and self._heading):
            self._user(REMINDER.format(entry.text), joined=False)
        elif self.messages:
            self._append(BLANK + entry.text)
        elif self.capabilities.get("system", False):
            self.messages.append({"role": "system", "content": entry.text})
        else:
            self._user(REMINDER.format(entry.text), joined=False)

    def _user(self, text: str, joined: bool) -> None:
        before = self.messages[-1]["role"] if self.messages else ""
        within = before == "user" and (joined or not self.capabilities.get("users_in_a_row", False))
        if within or (before == "tool" and not self.capabilities.get("user_after_tool", False)):
            self._append(BLANK + text if text and self.messages[-1]["content"] else text)
        else:
            self.messages.append({"role": "user", "content": text})

    def _append(self, text: str) -> None:
        self.messages[-1]["content"] += text

    def _result(self, entry: Entry) -> None:
        shown = [json.dumps(self._loaded(name), ensure_ascii=False) for name in entry.loads]
        text = BLANK.join(filter(None, [entry.text, "\n".join(shown)]))
        made = self.ids.get(entry.call_id, entry.call_id)
        answers = made if made in self.calls else plain_id(made)
        known = answers in self.calls
        if not self.capabilities.get("tool_results", False) or not (known or self._orphans()):
            self._user(text, joined=False)
            return
        name = self.calls.get(answers, "unknown")
        self.messages.append({"role": "tool", "tool_call_id": answers, "name": name, "content": text})

    def _orphans(self) -> bool:
        """Whether a result may stand here that answers no call."""
        return not self.calls or self.capabilities.get("orphan_tool", False)

    def _loaded(self, name: str) -> ToolSpec:
        return self.deferred.get(name, {"name": name})

    def _assistant(self, entry: Entry) -> None:
        message = spoken(entry, self.ids)
        self.calls = {call["id"]: call["function"]["name"] for call in message.get("tool_calls", ())}
        self.messages.append(message)


def spoken(entry: Entry, ids: Mapping[str, str]) -> dict[str, Any]:
    """An assistant's entry as a message."""
    message: dict[str, Any] = {"role": "assistant", "content": entry.text}
    if entry.reasoning is not None:
        message["reasoning_content"] = entry.reasoning
    if entry.calls:
        message["tool_calls"] = [
            {
                "id": plain_id(ids.get(call.id, call.id)),
                "type": "function",
                "function": {"name": call.name, "arguments": _arguments(call)},
            }
            for call in entry.calls
        ]
    return message


def told(
    entries: Sequence[Entry],
    capabilities: Mapping[str, bool],
    ids: Mapping[str, str],
    deferred: Mapping[str, ToolSpec],
    *,
    root: bool,
    calls: Mapping[str, str],
) -> list[Message]:
    """The entries as messages. `calls`: ids and names of the calls of the turn before."""
    making = Told(capabilities, deferred, ids, root, dict(calls))
    for entry in entries:
        making.add(entry)
    return list(making.messages)


def plain_id(call_id: str) -> str:
    """The id, or one made of it, in nine letters and digits, which every template takes."""
    if len(call_id) == 9 and call_id.isascii() and call_id.isalnum():
        return call_id
    number = int.from_bytes(hashlib.blake2s(call_id.encode("utf-8", "replace"), digest_size=8).digest())
    digits = []
    for _ in range(9):
        number, digit = divmod(number, len(_ALPHABET))
        digits.append(_ALPHABET[digit])
    return "".join(digits)


def _arguments(call: Call) -> dict[str, Any]:
    """A template writes an object. What is none stands in one, under a name that says so."""
    if isinstance(call.arguments, str):
        return {"unreadable": call.arguments} if call.arguments.strip() else {}
    return dict(call.arguments)
