"""Long texts: a text too long to fit is refused by its length, and a text that may fit is encoded in a thread."""

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
"""More characters than any token has, even a run of spaces."""
LONG = 32_768
"""Texts of this many characters or more are rendered in a thread: about 50 ms of work."""
_USUAL = 4
"""Characters of an average token."""
_CHUNK = 65_536
_SEAM = 256
"""Tokens of a chunk that may exist only because of the cut."""

_NAME = "agentrl-render"
_threads = ThreadPoolExecutor(2, _NAME)
"""A separate thread pool. Agents that wait for replies may take all threads of asyncio's pool."""


def _renew() -> None:
    """A forked process has none of its parent's threads."""
    global _threads
    _threads = ThreadPoolExecutor(2, _NAME)


os.register_at_fork(after_in_child=_renew)


async def aside(characters: int, make: Callable[[], T]) -> T:
    """The result of `make`, a render of the given number of characters. Long texts are rendered in a thread."""
    if characters < LONG:
        return make()
    return await asyncio.get_running_loop().run_in_executor(_threads, copy_context().run, make)


async def too_long(renderer: Renderer, texts: Sequence[str], bound: int) -> int | None:
    """The approximate number of tokens of the texts, if certainly `bound` or more. None if the texts may fit: only
    rendering can tell.

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
    """The content of an observation, if it is text."""
    if isinstance(observed, Raw):
        return [observed.text]
    return [text for message in observed for text in texts_in(message.get("content"))]


def _counted(renderer: Renderer, texts: Sequence[str], bound: int) -> int | None:
    """`too_long`, by encoding chunk after chunk until there are enough tokens."""
    tokens = characters = 0
    for text in texts:
        for start in range(0, len(text), _CHUNK):
            chunk = text[start : start + _CHUNK]
            tokens += max(0, len(renderer.prompt(Raw(chunk)).tokens) - _SEAM)
            characters += len(chunk)
            if tokens >= bound:
                return tokens * sum(map(len, texts)) // characters
    return None
