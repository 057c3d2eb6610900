"""Long texts: a text without any chance to fit is refused before the encoding. Other long texts are encoded in a
thread."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

from agentrl._util.texts import texts_in
from agentrl.render.base import Renderer
from agentrl.types import Observed, Raw

T = TypeVar("T")

TOKEN_CHARACTERS = 256
"""Maximum number of characters of a token, even of a run of spaces."""
LONG = 32_768
"""Minimum length in characters of a text that is rendered in a thread. Rendering takes about 50 ms."""
_USUAL = 4
"""Average number of characters of a token."""
_CHUNK = 65_536
_SEAM = 256
"""Number of tokens of a chunk that may differ because of the cut between chunks."""

_NAME = "agentrl-render"
_threads = ThreadPoolExecutor(2, _NAME)
"""The threads for long texts. asyncio's own pool may be full of agents that wait for replies."""


def _renew() -> None:
    """Make a new thread pool in a forked process, because the parent's threads are missing there."""
    global _threads
    _threads = ThreadPoolExecutor(2, _NAME)


os.register_at_fork(after_in_child=_renew)


async def aside(characters: int, make: Callable[[], T]) -> T:
    """Return the result of `make`, a function that renders a text of `characters` characters. A long text is rendered
    in a thread."""
    if characters < LONG:
        return make()
    return await asyncio.get_running_loop().run_in_executor(_threads, copy_context().run, make)


async def too_long(renderer: Renderer, texts: Sequence[str], bound: int) -> int | None:
    """The approximate number of tokens of the texts if it is certainly `bound` or more. None if the texts may fit,
    which only rendering shows.

    Costs as much as encoding `bound` tokens.
    """
    texts = [text.strip() for text in texts]  # templates trim whitespace around a text
    size = sum(map(len, texts))
    if size >= TOKEN_CHARACTERS * max(bound, 1):
        return size // _USUAL
    if size < LONG or size < 2 * _USUAL * bound:
        return None
    return await aside(size, lambda: _counted(renderer, texts, bound))


def texts_of(observed: Observed) -> list[str]:
    """The texts in the content of an observation."""
    if isinstance(observed, Raw):
        return [observed.text]
    return [text for message in observed for text in texts_in(message.get("content"))]


def _counted(renderer: Renderer, texts: Sequence[str], bound: int) -> int | None:
    """See `too_long`. Encodes chunk after chunk until the number of tokens is enough."""
    tokens = characters = 0
    for text in texts:
        for start in range(0, len(text), _CHUNK):
            chunk = text[start : start + _CHUNK]
            tokens += max(0, len(renderer.prompt(Raw(chunk)).tokens) - _SEAM)
            characters += len(chunk)
            if tokens >= bound:
                return tokens * sum(map(len, texts)) // characters
    return None
