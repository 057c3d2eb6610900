"""Encode a client's messages as tokens: whole prompts, and the tokens after a sampled turn.

After each attempt, the tokens must hold all words of the messages. If words are missing, the next form of the messages
is tried. TemplateError is raised if no form is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from agentrl._util.texts import texts_in
from agentrl.chat.request import Entry
from agentrl.chat.tokens.check_roles import prove_places
from agentrl.chat.tokens.messages import EntryConverter, one_by_one, to_assistant_message, to_messages
from agentrl.chat.tokens.missing_words import first_message_not_in
from agentrl.errors import TemplateError
from agentrl.render.base import Renderer
from agentrl.render.ids import plain_id
from agentrl.render.learn.probe import TOOL as PROBE_TOOL
from agentrl.trajectory.trajectory import assistant_message
from agentrl.types import Action, Message, Raw, Rendered, RenderedSpan, ToolCall, ToolSpec

Replies = Mapping[int, tuple[Action, Sequence[int]]]
"""Index of an assistant entry -> the action and the tokens of the sampled reply."""

_SILENCE = Entry("user", "")
_PLACE = "zqbeginning"
_NONE: Mapping[Any, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Writer:
    """Encodes conversations with the same root: the tools and template arguments with which they begin. Methods raise
    TemplateError if the template cannot carry a conversation.

    The first Writer of a template proves that no role is lost, and raises TemplateError for a lost role.
    """

    renderer: Renderer
    """The renderer, bound to the root's tools."""
    deferred: Mapping[str, ToolSpec] = field(default_factory=dict)
    """Deferred tools by name, as in `ChatRequest.deferred`."""

    def __post_init__(self) -> None:
        prove_places(self)

    def messages(
        self,
        entries: Sequence[Entry],
        ids: Mapping[str, str] = _NONE,
        *,
        root: bool = False,
        action: Action | None = None,
    ) -> list[Message]:
        """Convert entries to messages for the template.

        `ids` maps the client's id of a call to the id in the action. `action` is the turn before the entries. With
        `root`, the conversation begins with these entries, and instructions at the start become the system message.
        """
        entries, _ = self._apart(entries, _NONE)
        return to_messages(entries, self._forms(), ids, root=root, calls=_names(action))

    def prompt(self, entries: Sequence[Entry], replies: Replies = _NONE, ids: Mapping[str, str] = _NONE) -> Rendered:
        """The prompt of a new conversation.

        Without `replies`, the template renders all messages at once. With `replies`, the entries from the first sampled
        reply on are encoded turn by turn, so that each reply keeps its sampled tokens. The entries from an assistant
        entry on that the template cannot carry are encoded turn by turn, too.

        A shortened history may begin with an assistant entry. The template then writes this entry. If the template
        refuses, or if there are no entries, an empty message of the user comes first.
        """
        entries, replies = self._apart(entries, replies)
        opening = next((index for index, entry in enumerate(entries) if entry.role != "assistant"), len(entries))
        try:
            if entries:
                return self._prompt(
                    entries, {index: reply for index, reply in replies.items() if index >= opening}, ids
                )
        except TemplateError:
            if not opening:
                raise
        return self._prompt([_SILENCE, *entries], {index + 1: reply for index, reply in replies.items()}, ids)

    def _prompt(self, entries: Sequence[Entry], replies: Replies, ids: Mapping[str, str]) -> Rendered:
        first = min([*replies, *self._moved(entries)], default=len(entries))
        try:
            head = self._head(entries[:first], ids)
        except TemplateError:
            if _assistant(entries) >= first:
                raise
            first = _assistant(entries)
            head = self._head(entries[:first], ids)
        return head.rendered if first == len(entries) else self._pieces(head, entries, first, replies, ids)

    def bridge(
        self,
        history: Sequence[Message],
        action: Action,
        entries: Sequence[Entry],
        replies: Replies = _NONE,
        ids: Mapping[str, str] = _NONE,
        *,
        budget: int | None = None,
    ) -> Rendered:
        """The tokens after the sampled turn `action`: the missing end of the turn, the entries, and a generation
        prompt.

        `history` ends with the sampled turn. `budget` is the maximum number of tokens of the messages up to the next
        assistant message. Longer messages are cut.
        """
        entries, replies = self._apart(entries, replies)
        first = _assistant(entries)
        piece = self._bridge_to(history, action, entries[:first], ids, budget)
        return piece.rendered if first == len(entries) else self._pieces(piece, entries, first, replies, ids)

    def opened(self, rendered: Rendered, entry: Entry) -> Rendered:
        """A prompt followed by an assistant entry, as the beginning of a turn that the model continues."""
        before = Action("", "", "" if rendered.thinking else None)
        added = self.renderer.text(Raw(self._beginning(entry)), before)
        end = len(rendered.tokens)
        spans = [replace(span, start=span.start + end, stop=span.stop + end) for span in added.spans]
        return Rendered(
            (*rendered.tokens, *added.tokens),
            (*rendered.spans, *spans),
            added.thinking,
            rendered.cut + added.cut,
            rendered.special + added.special,
            rendered.checks + added.checks,
            rendered.media,
        )

    def _beginning(self, entry: Entry) -> str:
        """An assistant entry as the template writes it, up to the end of the entry's text, including the thought or an
        empty thought.

        A text that itself begins with a thought is returned unchanged.
        """
        name = "content" if entry.text or entry.reasoning is None else "reasoning_content"
        text = entry.text if name == "content" else entry.reasoning or ""
        tokens = self.renderer.text(Raw(text), Action("", "", None)).tokens
        if name == "content" and self.renderer.parse(tokens, "length").reasoning is not None:
            return text
        try:
            rendered = self.renderer.decode(self.renderer.encode({**to_assistant_message(entry, _NONE), name: _PLACE}))
        except TemplateError:
            return text
        lead, place, _ = rendered.partition(_PLACE)
        return lead + text if place else text

    def _forms(self, careful: bool = False) -> EntryConverter:
        return EntryConverter(
            capabilities=self.renderer.certificate.capabilities,
            deferred=self.deferred,
            results=self.renderer.certificate.results,
            careful=careful,
        )

    def _apart(self, entries: Sequence[Entry], replies: Replies) -> tuple[Sequence[Entry], Replies]:
        """Split parallel calls into separate turns if the template takes one call per turn. Sampled turns are not
        split."""
        if self.renderer.certificate.capabilities.get("parallel_calls", False):
            return entries, replies
        apart = list(one_by_one(entries, replies))
        return [entry for _, entry in apart], {
            i: replies[index] for i, (index, _) in enumerate(apart) if index is not None and index in replies
        }

    def _moved(self, entries: Sequence[Entry]) -> Iterator[int]:
        """Indices of assistant entries whose text the template leaves out, or writes after the calls."""
        if not self.renderer.certificate.capabilities.get("text_with_calls", False):
            yield from (i for i, entry in enumerate(entries) if entry.text and entry.calls)

    def _head(self, entries: Sequence[Entry], ids: Mapping[str, str]) -> _WriterState:
        """The template's own render of the first entries. Refused or dropped instructions may become user text."""

        def attempt(careful: bool, root: bool = True) -> _WriterState:
            messages = to_messages(entries, self._forms(careful), ids, root=root)
            return self._whole(self.renderer.prompt(messages), messages, messages)

        attempts = [lambda: attempt(False), lambda: attempt(True)]
        if all(entry.role in ("system", "developer") for entry in entries):
            attempts.append(lambda: attempt(True, root=False))
        return _first(attempts)

    def _bridge_to(
        self,
        history: Sequence[Message],
        action: Action,
        entries: Sequence[Entry],
        ids: Mapping[str, str],
        budget: int | None = None,
    ) -> _WriterState:
        """The tokens after a turn, for entries that hold no assistant entry. If the template refuses calls without
        their results, the turn is rendered as text."""

        def attempt(careful: bool, action: Action) -> _WriterState:
            messages = to_messages(entries, self._forms(careful), ids, calls=_names(action))
            rendered = self.renderer.bridge(history, action, messages, budget=budget)
            return self._whole(rendered, messages, [*history, *messages])

        attempts = [lambda: attempt(False, action), lambda: attempt(True, action)]
        if action.calls:
            attempts.append(lambda: attempt(True, replace(action, calls=())))
        return _first(attempts)

    def _pieces(
        self, piece: _WriterState, entries: Sequence[Entry], first: int, replies: Replies, ids: Mapping[str, str]
    ) -> Rendered:
        """The tokens of `piece`, followed by each assistant entry from `first` on and the entries after it."""
        tokens, cut, last = list(piece.rendered.tokens), piece.rendered.cut, piece
        special, checks, media = piece.rendered.special, piece.rendered.checks, [*piece.rendered.media]
        turns = [i for i in range(first, len(entries)) if entries[i].role == "assistant"]
        for start, end in pairwise([*turns, len(entries)]):
            action, sampled = replies.get(start) or self._turn_of(entries[start], ids, last)
            ids = {**ids, **_paired(entries[start], action, ids)}
            last = self._bridge_to([*last.history, assistant_message(action)], action, entries[start + 1 : end], ids)
            tokens += sampled
            media += (image.moved(len(tokens)) for image in last.rendered.media)
            tokens += last.rendered.tokens
            cut += last.rendered.cut
            special += last.rendered.special
            checks += last.rendered.checks
        spans = _spans(piece.rendered, len(tokens), last.rendered)
        return Rendered(tuple(tokens), spans, last.rendered.thinking, cut, special, checks, tuple(media))

    def _turn_of(self, entry: Entry, ids: Mapping[str, str], before: _WriterState) -> tuple[Action, Sequence[int]]:
        """The action and tokens of an assistant entry that the model did not sample, in the form of a sampled turn."""
        assistant = to_assistant_message(entry, ids)
        calls = [
            ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"])
            for call in assistant.get("tool_calls", ())
        ]
        tokens = self._encoded(assistant)
        if tokens[-1:] and tokens[-1] not in self.renderer.stop_token_ids:
            return Action(entry.text, entry.text, None, (), "length", None, tuple(tokens)), tokens
        turn = sum(message["role"] == "assistant" for message in before.history)
        read = self.renderer.parse(tokens, "stop", tokens[-1], thinking=before.rendered.thinking, turn=turn)
        if [call.name for call in read.calls] == [call.name for call in calls]:
            return read, tokens  # under the ids that the template writes
        return replace(read, content=entry.text, calls=tuple(calls)), tokens

    def _encoded(self, message: Message) -> list[int]:
        """The tokens of a message. If the template leaves the text out, the plain text is put before the calls."""
        try:
            tokens = self.renderer.encode(message)
            if first_message_not_in([message], self.renderer.decode(tokens)) is None:
                return tokens
        except TemplateError:
            if not message["content"]:
                raise
        text = self.renderer.text(Raw(message["content"]), Action("", "", None)).tokens
        return [*text, *(self.renderer.encode({**message, "content": ""}) if message.get("tool_calls") else ())]

    def _whole(self, rendered: Rendered, messages: Sequence[Message], history: Sequence[Message]) -> _WriterState:
        """The render with its messages. Raises TemplateError if a word of a message is not in the tokens."""
        index = None if rendered.cut else first_message_not_in(messages, self.renderer.decode(rendered.tokens))
        if index is not None:
            role, content = messages[index]["role"], "".join(texts_in(messages[index]["content"]))
            raise TemplateError(
                f"the chat template of {self.renderer.certificate.template} leaves out words of "
                f"message {index + 1} of {len(messages)} ({role}): {content!r:.80}"
            )
        return _WriterState(rendered, history)


def prove_for_agents(renderer: Renderer) -> None:
    """Raises TemplateError if a client's message of some role would be lost at some position, with tools or without.

    Takes about 0.2 s for the first use of a template in a process.
    """
    Writer(renderer)
    try:
        offering = renderer.bind([PROBE_TOOL])
    except TemplateError:  # an agent with tools gets the error at its first request
        return
    Writer(offering)


@dataclass(frozen=True, slots=True)
class _WriterState:
    """The last render, and all messages so far."""

    rendered: Rendered
    history: Sequence[Message]


def _first(attempts: Iterable[Callable[[], _WriterState]]) -> _WriterState:
    """The result of the first successful attempt. If all attempts fail, the error of the first attempt is raised."""
    failure: TemplateError | None = None
    for attempt in attempts:
        try:
            return attempt()
        except TemplateError as exc:
            failure = failure or exc
    assert failure is not None
    raise failure


def _assistant(entries: Sequence[Entry]) -> int:
    """The index of the first assistant entry, or the number of entries if there is none."""
    return next((i for i, entry in enumerate(entries) if entry.role == "assistant"), len(entries))


def _names(action: Action | None) -> dict[str, str]:
    return {call.id: call.name for call in action.calls} if action is not None else {}


def _paired(entry: Entry, action: Action, ids: Mapping[str, str]) -> dict[str, str]:
    """The ids of the entry's calls -> the ids of the action's calls, in order. Empty if the numbers of calls differ.
    Ids in `ids` are left out."""
    readable = [call.id for call in action.calls if call.error is None]
    call_ids = next((ids for ids in (readable, [call.id for call in action.calls]) if len(ids) == len(entry.calls)), [])
    pairs = zip(entry.calls if call_ids else (), call_ids, strict=True)
    return {wire: call_ids for call, call_ids in pairs for wire in (call.id, plain_id(call.id)) if wire not in ids}


def _spans(first: Rendered, length: int, last: Rendered) -> tuple[RenderedSpan, ...]:
    """The spans of several renders joined: everything between the first close and the last generation prompt is
    observation."""
    lengths = [{span.kind: span.stop - span.start for span in piece.spans} for piece in (first, last)]
    start, end = lengths[0].get("close", 0), length - lengths[1].get("prompt", 0)
    spans = (
        RenderedSpan("close", 0, start),
        RenderedSpan("observation", start, end),
        RenderedSpan("prompt", end, length),
    )
    return tuple(span for span in spans if span.stop > span.start)
