"""The proof that no client text is lost: a message of each role is written at each position of a conversation, and the
tokens must hold its text.

The proof runs before any request, once for a template with tools and once for the template without tools.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from agentrl.chat.request import Call, Entry
from agentrl.chat.tokens.messages import to_assistant_message
from agentrl.errors import TemplateError
from agentrl.render.base import Renderer
from agentrl.render.cache import Cache
from agentrl.types import Action, Message, Rendered

_WORD = re.compile(r"zqplace\d+")
_CALL = Call("call00000", "lookup", {"query": "what"})
_ASKS = Entry("assistant", "", calls=(_CALL,))
_RESULT = Entry("tool", "x", call_id=_CALL.id)
_ANSWERS, _USER = Entry("assistant", "x"), Entry("user", "x")

_ROLES = (Entry("system", "x"), Entry("developer", "x"), _USER, Entry("tool", "x", call_id="call00009"))
_ROOTS: Mapping[str, tuple[Sequence[Entry], Sequence[Entry]]] = {
    "at the head": ((), (_USER,)),
    "after a user": ((_USER,), ()),
    "after an answer": ((_USER, _ANSWERS), ()),
    "between users": ((_USER, _ANSWERS, _USER), (_USER,)),
    "after a result": ((_USER, _ASKS, _RESULT), ()),
}
_TURNS: Mapping[str, tuple[Entry, Sequence[Entry]]] = {
    "after a sampled answer": (_ANSWERS, ()),
    "after the result of a sampled call": (_ASKS, (_RESULT,)),
    "after a sampled call": (_ASKS, ()),
}
_PROVED: Cache[object] = Cache(64)
"""Certificates of proved templates by their `id()`. The references keep the ids unique."""


class EntryWriter(Protocol):
    """The methods of `agentrl.chat.tokens.writer.Writer` that the proof checks."""

    @property
    def renderer(self) -> Renderer: ...

    def messages(self, entries: Sequence[Entry], *, root: bool) -> list[Message]: ...

    def prompt(self, entries: Sequence[Entry], /) -> Rendered: ...

    def bridge(self, history: Sequence[Message], action: Action, entries: Sequence[Entry], /) -> Rendered: ...


def prove_places(writer: EntryWriter) -> None:
    """Raises TemplateError if a client's text would be lost. The error names the role, the position and the
    template."""
    certificate = writer.renderer.certificate
    _PROVED.get(f"{id(certificate)}", lambda: _proved(writer))


def _proved(writer: EntryWriter) -> object:
    for role in _ROLES:
        for place, (before, after) in _ROOTS.items():
            entries = _numbered([*before, role, *after])
            _check(writer, role, place, entries, partial(writer.prompt, entries))
        for place, (turn, before) in _TURNS.items():
            action = _sampled(writer.renderer, turn)
            if action is not None:
                entries = _numbered([*before, role])
                history = writer.messages([_USER, turn], root=True)
                _check(writer, role, place, entries, partial(writer.bridge, history, action, entries))
    return writer.renderer.certificate


def _check(
    writer: EntryWriter, role: Entry, place: str, entries: Sequence[Entry], write: Callable[[], Rendered]
) -> None:
    try:
        words = _WORD.findall(writer.renderer.decode(write().tokens))
    except TemplateError as exc:
        raise TemplateError(f"{_lost(writer, role, place)}: {exc}") from exc
    if words != [word for entry in entries for word in _WORD.findall(entry.text)]:
        raise TemplateError(f"{_lost(writer, role, place)}: the tokens hold {words}")


def _lost(writer: EntryWriter, role: Entry, place: str) -> str:
    name = writer.renderer.certificate.template
    return f"the chat template of {name} cannot be used with agents: a {role.role} message {place} would be lost"


def _numbered(entries: Sequence[Entry]) -> list[Entry]:
    """The entries, each with a unique word as its text."""
    return [replace(entry, text=entry.text and f"zqplace{i}") for i, entry in enumerate(entries)]


def _sampled(renderer: Renderer, turn: Entry) -> Action | None:
    """The action and the tokens of a turn, as if a model had sampled the turn. None if the template cannot write the
    turn."""
    try:
        tokens = renderer.encode(to_assistant_message(turn, {}))
    except TemplateError:
        return None
    return renderer.parse(tokens, "stop", tokens[-1])
