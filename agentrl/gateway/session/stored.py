"""Replies and conversations of a session by the ids of OpenAI's Responses API."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from agentrl.chat.request import ChatRequest, Entry, RefusedError
from agentrl.gateway.session.exchange import PendingAnswer
from agentrl.gateway.session.nodes import Node, Prompt
from agentrl.gateway.session.tree import Tree


class Stored:
    """The answers of a session by their ids (names). A request that names an answer continues it."""

    def __init__(self) -> None:
        self._answers: dict[str, PendingAnswer] = {}
        self._conversations: dict[str, list[PendingAnswer]] = {}
        self._instructed: set[Prompt] = set()
        """Roots (first prompts) whose first entry is the request's `instructions`."""

    def note(self, request: ChatRequest, answer: PendingAnswer) -> None:
        """Store an answer under the ids in its request."""
        if request.response_id:
            self._answers[request.response_id] = answer
        if request.conversation:
            self._conversations.setdefault(request.conversation, []).append(answer)
        if request.instructed:
            self._instructed.add(answer.prompt.top)

    def whole(self, request: ChatRequest, tree: Tree) -> ChatRequest:
        """The request with all entries to which it refers by id. Raises RefusedError for an id without a complete
        reply."""
        entries = tuple(_resolved(entry, tree) for entry in request.entries) if request.refers else request.entries
        node = self._continued(request)
        if node is not None:
            first = int(request.instructed)
            entries = (*entries[:first], *self._history(node), *entries[first:])
        return request if entries is request.entries else replace(request, entries=entries)

    def _continued(self, request: ChatRequest) -> Node | None:
        """The reply that a request continues by id."""
        if request.previous:
            answer = self._answers.get(request.previous)
            if answer is None:
                raise _unknown("previous_response_id", request.previous, "response")
            if (node := _complete(answer)) is None:
                raise _unknown("previous_response_id", request.previous, "complete response")
            return node
        answers = self._conversations.get(request.conversation, ())
        return next(filter(None, map(_complete, reversed(answers))), None)

    def _history(self, node: Node) -> Iterator[Entry]:
        """The conversation up to a reply. As in OpenAI's API, `instructions` hold for their own request only."""
        for reply in (*node.prompt.line(), node):
            skipped = int(reply.prompt in self._instructed)
            yield from reply.prompt.entries[skipped:]
            assert reply.sent is not None
            yield reply.sent


def _complete(answer: PendingAnswer) -> Node | None:
    return next((node for node in answer.nodes if node.sent is not None and answer.refused is None), None)


def _resolved(entry: Entry, tree: Tree) -> Entry:
    """The reply to which an entry refers, as an entry. Otherwise the entry itself."""
    if not entry.refers:
        return entry
    node = tree.named(entry.refers)
    if node is None or node.sent is None:
        raise _unknown("item_reference", entry.refers, "item")
    return node.sent


def _unknown(field: str, name: str, kind: str) -> RefusedError:
    error = f"{field}: this session has no {kind} {name!r:.80}; send the whole conversation as input"
    return RefusedError("invalid", error)
