"""From what a client tells to tokens: prompts, and what stands behind a sampled turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from agentrl.gateway.request import Entry
from agentrl.gateway.told import plain_id, spoken, told
from agentrl.render.base import Rendered, RenderedSpan, Renderer
from agentrl.trajectory import assistant_message
from agentrl.types import Action, Message, Raw, ToolCall, ToolSpec

Known = Mapping[int, tuple[Action, Sequence[int]]]
"""Index of an assistant's entry -> that reply as it was sampled: its action and its tokens."""

_NONE: Mapping[Any, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Writer:
    """Writes the conversations of one root. Methods raise TemplateError where the template cannot carry one."""

    renderer: Renderer
    """Bound to the root's tools."""
    deferred: Mapping[str, ToolSpec] = field(default_factory=dict)
    """Tools that are shown where a result loads them, by name: `Request.deferred`."""

    def messages(
        self,
        entries: Sequence[Entry],
        ids: Mapping[str, str] = _NONE,
        *,
        root: bool = False,
        action: Action | None = None,
    ) -> list[Message]:
        """The entries as messages for the template.

        `ids` maps the id of a call on the wire to the id that its action has; `action` is the turn before the entries.
        With `root` the conversation begins here: instructions at its head are its system message.
        """
        calls = {call.id: call.name for call in (action.calls if action else ())}
        return told(entries, self.renderer.certificate.capabilities, ids, self.deferred, root=root, calls=calls)

    def prompt(self, entries: Sequence[Entry], known: Known = _NONE, ids: Mapping[str, str] = _NONE) -> Rendered:
        """The prompt of a new root.

        Without `known` it is the template's own render of all messages. With it, everything behind the first known
        reply is added piece by piece, so that each known reply stands there with the tokens that were sampled.
        """
        first = min(known, default=len(entries))
        messages = self.messages(entries[:first], ids, root=True)
        rendered = self.renderer.prompt(messages)
        if first == len(entries):
            return rendered
        return self._pieces(_Piece(rendered, messages), entries, first, known, ids)

    def bridge(
        self,
        history: Sequence[Message],
        action: Action,
        entries: Sequence[Entry],
        known: Known = _NONE,
        ids: Mapping[str, str] = _NONE,
        *,
        budget: int | None = None,
    ) -> Rendered:
        """What follows the sampled turn `action`, the last of `history`: its close, the entries, a generation prompt.

        `budget` bounds the tokens of the messages before the next assistant's.
        """
        first = next((i for i, entry in enumerate(entries) if entry.role == "assistant"), len(entries))
        messages = self.messages(entries[:first], ids, action=action)
        rendered = self.renderer.bridge(history, action, messages, budget=budget)
        if first == len(entries):
            return rendered
        return self._pieces(_Piece(rendered, [*history, *messages]), entries, first, known, ids)

    def opened(self, rendered: Rendered, text: str) -> Rendered:
        """A prompt, and text with which the assistant's next turn begins: the model goes on behind it."""
        before = Action("", "", "" if rendered.thinking else None)
        added = self.renderer.text(Raw(text), before)
        end = len(rendered.tokens)
        spans = [replace(span, start=span.start + end, stop=span.stop + end) for span in added.spans]
        return Rendered(
            (*rendered.tokens, *added.tokens), (*rendered.spans, *spans), added.thinking, rendered.cut + added.cut
        )

    def _pieces(
        self, piece: _Piece, entries: Sequence[Entry], first: int, known: Known, ids: Mapping[str, str]
    ) -> Rendered:
        """`piece`, then each assistant's entry from `first` on with what stands behind it."""
        tokens, cut, last = list(piece.rendered.tokens), piece.rendered.cut, piece
        turns = [i for i in range(first, len(entries)) if entries[i].role == "assistant"]
        for at, end in pairwise([*turns, len(entries)]):
            action, sampled = known.get(at) or self._said(entries[at], ids, last)
            ids = {**ids, **_paired(entries[at], action, ids)}
            history = [*last.history, assistant_message(action)]
            messages = self.messages(entries[at + 1 : end], ids, action=action)
            rendered = self.renderer.bridge(history, action, messages)
            tokens += [*sampled, *rendered.tokens]
            cut += rendered.cut
            last = _Piece(rendered, [*history, *messages])
        return Rendered(tuple(tokens), _spans(piece.rendered, len(tokens), last.rendered), last.rendered.thinking, cut)

    def _said(self, entry: Entry, ids: Mapping[str, str], before: _Piece) -> tuple[Action, Sequence[int]]:
        """An assistant's entry that nobody sampled, as a model would have sampled it."""
        written = spoken(entry, ids)
        tokens = self.renderer.encode(written)
        calls = [
            ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"])
            for call in written.get("tool_calls", ())
        ]
        turn = sum(message["role"] == "assistant" for message in before.history)
        read = self.renderer.parse(tokens, "stop", tokens[-1], thinking=before.rendered.thinking, turn=turn)
        if [call.name for call in read.calls] == [call.name for call in calls]:
            return read, tokens  # under the ids that the template writes
        return replace(read, content=entry.text, calls=tuple(calls)), tokens


@dataclass(frozen=True, slots=True)
class _Piece:
    """What was written last, and all messages so far."""

    rendered: Rendered
    history: Sequence[Message]


def _paired(entry: Entry, action: Action, ids: Mapping[str, str]) -> dict[str, str]:
    """The ids of the entry's calls -> those of the action, where nobody said otherwise: in order, if all are there."""
    readable = [call.id for call in action.calls if call.error is None]
    if len(readable) != len(entry.calls):
        return {}
    pairs = zip(entry.calls, readable, strict=True)
    return {wire: made for call, made in pairs for wire in (call.id, plain_id(call.id)) if wire not in ids}


def _spans(first: Rendered, length: int, last: Rendered) -> tuple[RenderedSpan, ...]:
    """Between the close of the first piece and the last generation prompt, all is what the model reads."""
    lengths = [{span.kind: span.stop - span.start for span in piece.spans} for piece in (first, last)]
    start, end = lengths[0].get("close", 0), length - lengths[1].get("prompt", 0)
    found = (
        RenderedSpan("close", 0, start),
        RenderedSpan("observation", start, end),
        RenderedSpan("prompt", end, length),
    )
    return tuple(span for span in found if span.stop > span.start)
