"""The interface of a wire: reads a request and writes the answer, whole or as server-sent events."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Protocol

from agentrl.chat.options import SessionOptions
from agentrl.chat.request import ChatRequest, RefusalKind, RefusedError, Reply
from agentrl.types import JSON

DEFAULTS = SessionOptions()


class ReplyWriter(Protocol):
    """Writes the answer to one request."""

    @property
    def request(self) -> ChatRequest:
        """The request."""
        ...

    def whole(self, replies: Sequence[Reply]) -> JSON:
        """The body of an answer without streaming."""
        ...

    def opening(self) -> bytes:
        """The events before the reply."""
        ...

    def progress(self) -> bytes:
        """An event without content, to show the client that the reply is in progress."""
        ...

    def closing(self, replies: Sequence[Reply]) -> tuple[bytes, bytes]:
        """The events of the reply, and the events at the end."""
        ...

    def failure(self, refused: RefusedError) -> bytes:
        """The events that end a stream without a reply."""
        ...


class Wire(Protocol):
    """One vendor's API."""

    def read(
        self, body: Mapping[str, JSON], headers: Mapping[str, str], digest: str, options: SessionOptions = DEFAULTS
    ) -> ReplyWriter:
        """Read a request. The returned ReplyWriter holds the request and writes the answer. `headers` accepts names in
        any case.

        Raises RefusedError with the parameter's name.
        """
        ...

    def error(self, status: int, message: str, kind: RefusalKind | None = None) -> JSON:
        """The body of an error. `kind` is None for an error of the HTTP server itself."""
        ...


def event(name: str, data: JSON) -> bytes:
    """A server-sent event with a name."""
    return f"event: {name}\ndata: {compact(data)}\n\n".encode()


def compact(data: JSON) -> str:
    """JSON in ASCII, because some clients end a line of an event at any line separator of Unicode."""
    return json.dumps(data, separators=(",", ":"))


def arguments_text(arguments: Mapping[str, JSON] | str) -> str:
    """A call's arguments on OpenAI's wires: JSON in a string, or the raw text if the arguments are no JSON."""
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
