"""The interface of a wire, a vendor's API format: reads requests, and writes responses as a single body or as
server-sent events."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Protocol

from agentrl.chat.options import SessionOptions
from agentrl.chat.request import ChatRequest, RefusalKind, RefusedError, Reply
from agentrl.types import JSON

DEFAULTS = SessionOptions()


class ReplyWriter(Protocol):
    """Writes the HTTP response to one request."""

    @property
    def request(self) -> ChatRequest:
        """The request."""
        ...

    def whole(self, replies: Sequence[Reply]) -> JSON:
        """The body of a response without streaming."""
        ...

    def opening(self) -> bytes:
        """The first events of a stream, before the replies are there."""
        ...

    def progress(self) -> bytes:
        """An event without content, which shows a waiting client that the server is alive."""
        ...

    def closing(self, replies: Sequence[Reply]) -> tuple[bytes, bytes]:
        """The events of the replies, and the events that end the stream."""
        ...

    def failure(self, refused: RefusedError) -> bytes:
        """The events that end a stream without a reply."""
        ...


class Wire(Protocol):
    """The API format of a vendor."""

    def read(
        self, body: Mapping[str, JSON], headers: Mapping[str, str], digest: str, options: SessionOptions = DEFAULTS
    ) -> ReplyWriter:
        """Read a request. The returned ReplyWriter holds the request and writes the answer. `headers` accepts names in
        any case.

        Raises RefusedError, which names the wrong parameter.
        """
        ...

    def error(self, status: int, message: str, kind: RefusalKind | None = None) -> JSON:
        """The body of an error response. `kind` is None for an error of the HTTP server itself."""
        ...


def event(name: str, data: JSON) -> bytes:
    """A server-sent event with a name."""
    return f"event: {name}\ndata: {compact(data)}\n\n".encode()


def compact(data: JSON) -> str:
    """JSON text in ASCII, because some clients end a line of an event at any line separator of Unicode."""
    return json.dumps(data, separators=(",", ":"))


def arguments_text(arguments: Mapping[str, JSON] | str) -> str:
    """A call's arguments in OpenAI's APIs: a string of JSON, or the raw text if the arguments are no JSON."""
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
