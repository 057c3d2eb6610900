"""What every wire reads of a request and writes of a reply, in one form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from agentrl.chat.options import SessionOptions
from agentrl.errors import AgentRLError
from agentrl.types import JSON, ToolSpec

WireName: TypeAlias = Literal["messages", "responses", "chat"]
Role: TypeAlias = Literal["system", "developer", "user", "tool", "assistant"]
RefusalKind: TypeAlias = Literal["invalid", "context_full", "closed", "overloaded", "unavailable"]


class RefusedError(AgentRLError):
    """A request that is not answered with a reply. Each wire says it in its vendor's words.

    invalid: the request is at fault (400). context_full: the prompt is too long (400, in the words on which clients
    compact). closed: no such session, or it has ended (400: on it every client ends). overloaded and unavailable: ask
    again later (503).
    """

    def __init__(self, kind: RefusalKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind

    @property
    def status(self) -> int:
        return 503 if self.kind in ("overloaded", "unavailable") else 400


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call of an assistant message, as the client tells it."""

    id: str
    name: str
    arguments: Mapping[str, JSON] | str
    """A string where it is no JSON object: as it came."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One block of a conversation. An assistant message is one entry; each text and each result of others is one."""

    role: Role
    text: str = ""
    """The text, or a tool's result as text. Of an assistant message: what it says beside thoughts and calls."""
    reasoning: str | None = None
    calls: tuple[Call, ...] = ()
    receipts: tuple[str, ...] = ()
    """Ids and signatures in an assistant message that may name a reply of the session: those of its calls, items and
    thoughts."""
    call_id: str = ""
    """Of a result: the call that it answers."""
    joined: bool = False
    """It stands in the same message of the wire as the entry before it."""
    loads: tuple[str, ...] = ()
    """Names of deferred tools that this result gives to the model (Anthropic's `tool_reference`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request for a reply."""

    wire: WireName
    entries: tuple[Entry, ...]
    """The conversation, its system prompt first."""
    tools: tuple[ToolSpec, ...] = ()
    """Tools at the head of the prompt, as chat templates take them."""
    deferred: Mapping[str, ToolSpec] = field(default_factory=dict)
    """Tools that are shown where an entry `loads` them, by name."""
    stream: bool = False
    n: int = 1
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    model: str = ""
    asked: Mapping[str, JSON] = field(default_factory=dict)
    """What is recorded and not obeyed: temperature, top_p, top_k, seed; tools, images and formats that are left out."""
    branch: str = ""
    """What the client's headers call this line of work (a sub-agent's thread, say); empty for the main one."""
    digest: str = ""
    """A hash of the body as it came. The same body again may be a retry."""
    retried: bool = False
    """The client says that it asks again (`x-stainless-retry-count` above 0)."""


@dataclass(frozen=True, slots=True)
class ReplyCall:
    """A call to execute."""

    id: str
    """Minted by the session: letters, digits, `_` and `-`, at most 64, unique in the session."""
    name: str
    arguments: Mapping[str, JSON] | str
    """A string is the text of a call that could not be read, for the client to answer. It is no JSON object."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one reply, as the engine counts them."""

    prompt: int
    """The whole prompt, cached tokens included."""
    cached: int
    sampled: int


@dataclass(frozen=True, slots=True)
class Reply:
    """One sampled turn, for a wire to write."""

    id: str
    """Unique in the session; wires derive the ids of messages and items from it."""
    receipt: str
    """Opaque text that comes back with thoughts (`signature`, `encrypted_content`) and names this reply."""
    content: str
    reasoning: str | None
    calls: tuple[ReplyCall, ...]
    stop: Literal["end", "calls", "length", "stop_sequence"]
    stop_sequence: str | None
    usage: Usage
    without_reasoning: bool = False
    """The client has the thoughts of this reply already: write the rest (the end of an answer that was cut off)."""


class Exchange(Protocol):
    """A request that is being answered. Cancelling a wait ends no generation."""

    async def accepted(self) -> None:
        """Wait until the prompt is rendered and known to fit. Raises RefusedError."""
        ...

    async def replies(self) -> Sequence[Reply]:
        """Wait for the replies, `n` of them. Raises RefusedError."""
        ...

    def delivered(self) -> None:
        """The client has got the whole answer."""
        ...

    def lost(self) -> None:
        """The client went away before it got the whole answer. The same request again gets the same reply.

        Also behind `delivered`: a connection can be reset with an answer that was sent and not read.
        """
        ...


class Asked(Protocol):
    """What a server needs of a session."""

    @property
    def options(self) -> SessionOptions:
        """What of a request may be left out instead of refused."""
        ...

    def note_refused(self, what: str, status: int, message: str, kind: RefusalKind = "invalid") -> None:
        """Keep that the server refused a request before it was asked. `what` is its method and path."""
        ...

    def ask(self, request: Request) -> Exchange:
        """Attach a request. Never raises: the exchange does."""
        ...

    async def count(self, request: Request) -> int:
        """The tokens of the request's whole prompt. Raises RefusedError if it is too long, or cannot be written."""
        ...
