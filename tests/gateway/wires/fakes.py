"""A session that answers what it is told, and remembers what it was asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from agentrl.chat.options import SessionOptions
from agentrl.chat.request import ChatRequest, Reply, ReplyCall, ReplyUsage

USAGE = ReplyUsage(prompt=100, cached=60, sampled=7)
CALL = ReplyCall("call_1", "look", {"where": "über ☃", "deep": {"b": [1, None]}})
OTHER = ReplyCall("call_2", "look", {})
FULL = Reply("r1", "receipt-1", "Hello.", "Let me see.", (CALL, OTHER), "calls", None, USAGE)
PLAIN = Reply("r2", "receipt-2", "The end.", None, (), "end", None, USAGE)

TOOLS = {
    "messages": [{"name": "look", "description": "Looks.", "input_schema": {"type": "object"}}],
    "responses": [{"type": "function", "name": "look", "description": "Looks.", "parameters": {"type": "object"}}],
    "chat": [
        {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object"}}}
    ],
}
"""The same tool in each wire's form."""


@dataclass
class FakeExchange:
    request: ChatRequest
    answer: Callable[[ChatRequest], Sequence[Reply] | Exception]
    accept: Callable[[ChatRequest], Exception | None] = lambda _: None
    hold: asyncio.Event | None = None
    told: list[str] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    async def accepted(self) -> None:
        if error := self.accept(self.request):
            raise error

    async def replies(self) -> Sequence[Reply]:
        if self.hold is not None:
            await self.hold.wait()
        answer = self.answer(self.request)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def delivered(self) -> None:
        self.told.append("delivered")
        self.news.set()

    def lost(self) -> None:
        self.told.append("lost")
        self.news.set()


@dataclass
class FakeSession:
    key: str = "key-1"
    answer: Callable[[ChatRequest], Sequence[Reply] | Exception] = lambda request: [FULL] * request.n
    accept: Callable[[ChatRequest], Exception | None] = lambda _: None
    hold: asyncio.Event | None = None
    exchanges: list[FakeExchange] = field(default_factory=list)
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    options: SessionOptions = SessionOptions()  # noqa: RUF009 - immutable
    reads_images: bool = False
    refused: list[tuple[str, int, str]] = field(default_factory=list)

    def note_refused(self, target: str, status: int, message: str, kind: str = "invalid") -> None:
        self.refused.append((target, status, message))

    def ask(self, request: ChatRequest) -> FakeExchange:
        self.exchanges.append(FakeExchange(request, self.answer, self.accept, self.hold))
        self.asked.set()
        return self.exchanges[-1]

    async def count(self, request: ChatRequest) -> int:
        return sum(len(entry.text) for entry in request.entries)

    @property
    def request(self) -> ChatRequest:
        return self.exchanges[-1].request
