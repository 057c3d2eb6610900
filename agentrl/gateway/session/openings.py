"""First prompts of conversations, shared by sessions: equal prompts are rendered once, and held in memory once.

The agents of a group, and often all agents of a training step, begin with the same text. A coding agent's first prompt
has some 20,000 tokens, and a render takes 0.1 s.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Any

from agentrl._util.per_loop import PerLoop
from agentrl.chat.request import ChatRequest, Entry
from agentrl.render.base import Renderer
from agentrl.types import Message, Rendered, ToolSpec

_MOST = 32 << 20
"""Maximum total of `Opening.size` in the cache: about 200 prompts of 20,000 tokens."""


@dataclass(frozen=True, slots=True)
class Opening:
    """A rendered first prompt. Sessions share the object, and must not change its parts."""

    renderer: Renderer
    """The renderer, bound to the tools. The reference keeps its `id()`, a part of the key, unique."""
    entries: tuple[Entry, ...]
    tools: tuple[ToolSpec, ...]
    rendered: Rendered
    messages: Sequence[Message]

    @property
    def size(self) -> int:
        """The approximate size in bytes of entries, tools and tokens."""
        length = sum(len(entry.text) for entry in self.entries)
        return length + len(str(self.tools)) + 4 * len(self.rendered.tokens)


class Openings:
    """The cache of first prompts of an event loop. The least recently used prompt is dropped first."""

    def __init__(self, most: int = _MOST) -> None:
        self._most, self.size = most, 0
        self.prompts: OrderedDict[bytes, Opening] = OrderedDict()
        self.rendering: dict[bytes, asyncio.Task[Opening]] = {}

    async def get(self, key: bytes, make: Callable[[], Awaitable[Opening]]) -> Opening:
        """The prompt of a key, rendered by `make` on first use. If `make` fails, all waiting callers get the error, and
        the next call tries again.

        A cancelled caller does not cancel the render.
        """
        if (opening := self.prompts.get(key)) is not None:
            self.prompts.move_to_end(key)
            return opening
        if (making := self.rendering.get(key)) is None:
            # The task serves all sessions, so it runs without an episode's context.
            making = asyncio.get_running_loop().create_task(_run(make), context=Context())
            self.rendering[key] = making
            making.add_done_callback(partial(self._store, key))
        return await asyncio.shield(making)

    def _store(self, key: bytes, task: asyncio.Task[Opening]) -> None:
        del self.rendering[key]
        if task.cancelled() or task.exception() is not None:
            return
        opening = task.result()
        if opening.size > self._most:
            return
        self.prompts[key] = opening
        self.size += opening.size
        while self.size > self._most:
            _, dropped = self.prompts.popitem(last=False)
            self.size -= dropped.size


_here: PerLoop[Openings] = PerLoop()


def openings() -> Openings:
    """The first prompts of the running event loop."""
    return _here.here(Openings)


def opening_key(renderer: Renderer, request: ChatRequest, entries: Sequence[Entry]) -> bytes | None:
    """The key of a first prompt. None for a prompt with images, which are too large to compare.

    `renderer` stands for the template, its arguments and the tools.
    """
    if any(entry.parts for entry in entries):
        return None
    # Some templates write the date.
    context: tuple[Any, ...] = (id(renderer), request.continued, request.deferred, time.strftime("%F"))
    return blake2b(repr((context, tuple(entries))).encode("utf-8", "surrogatepass"), digest_size=32).digest()


async def _run(make: Callable[[], Awaitable[Opening]]) -> Opening:
    return await make()
