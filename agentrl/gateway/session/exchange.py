"""Requests in progress, and the clients that wait for their answers. An answer is all replies to a request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from agentrl.chat.request import ChatRequest, RefusedError, Reply
from agentrl.gateway.session.nodes import Node, Prompt


@dataclass(slots=True, eq=False)
class PendingAnswer:
    """The replies to a request. Retries of the request get the same replies."""

    request: ChatRequest
    """The request without its conversation. The tree holds the conversation."""
    prompt: Prompt
    number: int = 0
    nodes: list[Node] = field(default_factory=list)
    accepted: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[Sequence[Reply]] | None = None
    refused: RefusedError | None = None
    waiting: int = 0
    """Number of clients that are connected and wait for the answer."""
    delivered: bool = False

    @property
    def got(self) -> bool:
        """Whether the client got the answer: the answer was delivered, or a later request continues it."""
        return self.delivered or (bool(self.nodes) and all(node.delivered for node in self.nodes))

    @property
    def replayable(self) -> bool:
        """Whether a repeated request may get this answer, now or later."""
        return self.refused is None and (self.task is None or not self.task.cancelled())

    def is_like(self, request: ChatRequest) -> bool:
        """Whether another request for the same prompt has the same parameters."""
        mine = self.request
        same = ("n", "max_tokens", "stop", "stop_token_ids", "branch", "forced", "parallel", "shows_stop")
        return all(getattr(mine, name) == getattr(request, name) for name in same)


class Answers:
    """The answers of a session, with an index for repeated requests."""

    def __init__(self) -> None:
        self._all: list[PendingAnswer] = []
        self._by_body: dict[str, list[PendingAnswer]] = {}
        self._by_key: dict[str, PendingAnswer] = {}
        self._by_prompt: dict[Prompt, list[PendingAnswer]] = {}

    def __iter__(self) -> Iterator[PendingAnswer]:
        return iter(self._all)

    def add(self, request: ChatRequest, prompt: Prompt, *, whole: bool = True) -> PendingAnswer:
        """Register an answer. With `whole=False` the answer is only the missing rest of a truncated reply, so only
        requests with the same body get it."""
        answer = PendingAnswer(replace(request, entries=(), tools=(), deferred={}), prompt, len(self._all))
        self._all.append(answer)
        if whole:
            self._by_prompt.setdefault(prompt, []).append(answer)
        self._note(request, answer)
        return answer

    def repeated(self, request: ChatRequest) -> PendingAnswer | None:
        """The earlier answer for a repeated request. None for a new request.

        A repeated request has the `Idempotency-Key` of an earlier request. Without a key, a request repeats an earlier
        request with the same body if the client marks a retry, or if the earlier client disconnected without the
        answer. Equal requests at the same time are separate. Raises RefusedError if a request with another body had the
        key.
        """
        if request.idempotency_key:
            return self._with_key(request)
        same = [answer for answer in self._by_body.get(request.digest, ()) if answer.replayable]
        if not request.retried:
            same = [answer for answer in same if not answer.got and not answer.waiting]
        return max(same, key=lambda answer: (not answer.got, not answer.waiting, answer.number), default=None)

    def _with_key(self, request: ChatRequest) -> PendingAnswer | None:
        answer = self._by_key.get(request.idempotency_key)
        if answer is None or not answer.replayable:
            return None
        if answer.request.digest != request.digest:
            raise RefusedError("invalid", "Idempotency-Key: another request had this key; send a new key with each")
        return answer

    def unclaimed(self, prompt: Prompt, request: ChatRequest) -> PendingAnswer | None:
        """An answer to the same prompt that no client got and no client waits for. For a retry, a client may still
        wait."""
        if request.idempotency_key:
            return None
        for answer in reversed(self._by_prompt.get(prompt, ())):
            unclaimed = not answer.got and (request.retried or not answer.waiting)
            if unclaimed and answer.replayable and answer.is_like(request):
                self._note(request, answer)
                return answer
        return None

    def after(self, node: Node) -> Iterator[PendingAnswer]:
        """The answers to requests that continue a reply."""
        return (answer for prompt in node.prompts.values() for answer in self._by_prompt.get(prompt, ()))

    def _note(self, request: ChatRequest, answer: PendingAnswer) -> None:
        if request.digest:
            self._by_body.setdefault(request.digest, []).append(answer)
        if request.idempotency_key:
            self._by_key[request.idempotency_key] = answer


class Waiting:
    """The Exchange of a client that waits for an answer."""

    def __init__(
        self,
        answer: PendingAnswer,
        closed: Callable[[], RefusedError],
        note: Callable[[Literal["delivered", "lost"], PendingAnswer], None],
    ) -> None:
        self._answer, self._closed, self._note = answer, closed, note
        self._state: Literal["waits", "delivered", "lost"] = "waits"
        answer.waiting += 1
        for node in answer.nodes:
            node.lost = False

    async def accepted(self) -> None:
        await self._answer.accepted.wait()
        if (refused := self._answer.refused) is not None:
            raise RefusedError(refused.kind, str(refused))

    async def replies(self) -> Sequence[Reply]:
        task = self._answer.task
        assert task is not None
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise self._closed() from None
            raise
        except RefusedError as refused:
            raise RefusedError(refused.kind, str(refused)) from None

    def delivered(self) -> None:
        if self._state != "waits":
            return
        self._state = "delivered"
        self._answer.waiting -= 1
        self._answer.delivered = True
        for node in self._answer.nodes:
            node.delivered = True
        self._note("delivered", self._answer)

    def lost(self) -> None:
        """Record that the client did not get the answer. Even a delivered answer is lost if the client did not read the
        sent bytes."""
        before, self._state = self._state, "lost"
        answer = self._answer
        if before == "lost":
            return
        answer.waiting -= before == "waits"
        answer.delivered = False
        for node in answer.nodes:
            node.lost = not answer.waiting
            node.delivered = node.echoed
        self._note("lost", answer)


class RefusedExchange:
    """The Exchange of a refused request."""

    def __init__(self, refused: RefusedError) -> None:
        self._refused = refused

    async def accepted(self) -> None:
        raise self._refused

    async def replies(self) -> Sequence[Reply]:
        raise self._refused

    def delivered(self) -> None:
        pass

    def lost(self) -> None:
        pass
