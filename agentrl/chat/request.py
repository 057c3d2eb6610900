"""Requests and replies in a form that is common to all wires. A wire is the API format of a vendor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, Self, TypeAlias

from agentrl.chat.options import SessionOptions
from agentrl.errors import AgentRLError
from agentrl.image import Image, Part
from agentrl.types import JSON, ToolSpec

WireName: TypeAlias = Literal["messages", "responses", "chat", "gemini"]
Role: TypeAlias = Literal["system", "developer", "user", "tool", "assistant"]
RefusalKind: TypeAlias = Literal["invalid", "context_full", "closed", "overloaded", "unavailable"]


class RefusedError(AgentRLError):
    """A request that gets an error instead of a reply. Each wire words the error as its vendor does.

    The kinds are: invalid: the request is at fault (400). context_full: the prompt is too long (400, in words that make
    clients compact their history). closed: the session does not exist or has ended (400, which stops every client).
    overloaded and unavailable: ask again later (503).
    """

    def __init__(self, kind: RefusalKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind

    @property
    def status(self) -> int:
        return 503 if self.kind in ("overloaded", "unavailable") else 400


@dataclass(frozen=True, slots=True)
class Call:
    """A client's tool call in an assistant message."""

    id: str
    name: str
    arguments: Mapping[str, JSON] | str
    """The arguments as an object. A str is the original text, which is no JSON object."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A piece of a conversation: a whole assistant message, or one text or tool result of another role."""

    role: Role
    text: str = ""
    """The text, or a tool's result as text. For an assistant message, the text without thoughts and calls."""
    reasoning: str | None = None
    calls: tuple[Call, ...] = ()
    receipts: tuple[str, ...] = ()
    """For an assistant message: the ids and signatures of calls, items and thoughts. The session may recognize its own
    reply by an id or a signature."""
    call_id: str = ""
    """For a tool result, the id of the answered call."""
    joined: bool = False
    """Whether the client sent the entry in the same message as the entry before."""
    loads: tuple[str, ...] = ()
    """Names of deferred tools that this result loads (Anthropic's `tool_reference`)."""
    refers: str = ""
    """The id of an item that stands for a whole reply; all other content is then empty."""
    parts: tuple[Part, ...] = ()
    """The texts and images in order, if a user's message or a tool's result has an image. `text` then holds only the
    texts."""

    @classmethod
    def of(cls, role: Role, parts: Sequence[Part], *, call_id: str = "", loads: tuple[str, ...] = ()) -> Self:
        """Make an entry from texts and images. In `text`, each text begins a new line."""
        texts = [part for part in parts if isinstance(part, str)]
        mixed = tuple(parts) if len(texts) < len(parts) else ()
        return cls(role, "\n".join(texts), call_id=call_id, loads=loads, parts=mixed)

    @property
    def images(self) -> list[Image]:
        return [part for part in self.parts if isinstance(part, Image)]


@dataclass(frozen=True, slots=True)
class Forced:
    """A demand of the client on the form of the answer: a call of one of the tools, JSON, or either."""

    names: tuple[str, ...] = ()
    """Names of the tools that may be called."""
    schema: Mapping[str, JSON] | None = None
    """The JSON schema of an answer without calls. None: no JSON is demanded."""
    text: Mapping[str, JSON] | None = None
    """The demanded form of an answer without calls and without JSON, as a format of xgrammar: a regular expression, a
    choice or a grammar. If both `schema` and `text` are None, a call is required."""
    parallel: bool = True
    """Whether several calls are allowed."""
    source: str = field(default="tool_choice", compare=False)
    """Name of the request's field that holds the demand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """One request for a reply."""

    wire: WireName
    entries: tuple[Entry, ...]
    """The conversation, the system prompt first."""
    tools: tuple[ToolSpec, ...] = ()
    """The tools at the start of the prompt, in the form that chat templates take."""
    deferred: Mapping[str, ToolSpec] = field(default_factory=dict)
    """Deferred tools by name. The model sees a deferred tool only from an entry on that `loads` the tool."""
    stream: bool = False
    n: int = 1
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    model: str = ""
    forced: Forced | None = None
    """The demanded form of the answer. None: any form."""
    recorded: Mapping[str, JSON] = field(default_factory=dict)
    """Parameters that are recorded but not obeyed: temperature, top_p, top_k, seed; also omitted tools, images and
    formats."""
    continued: bool = False
    """Whether the last entry is an assistant's message that the model continues, instead of beginning a new message."""
    parallel: bool = True
    """Whether the reply may hold several calls."""
    template_kwargs: Mapping[str, JSON] = field(default_factory=dict)
    """Arguments for the chat template, such as `enable_thinking`. Arguments that the template does not read change
    nothing."""
    effort: str | None = None
    """How much the model should think, in OpenAI's words. "none" turns thoughts off. None: the client did not set an
    effort."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end the reply, besides the template's tokens."""
    shows_stop: bool = False
    """Whether the reply's text includes the stop string at the end."""
    shows_thoughts: bool = True
    """Whether the client gets the thoughts of the reply."""
    branch: str = ""
    """The name of the branch, such as `solver/1`, or `sub-agent/ID` from the client's own headers. Empty for the main
    conversation."""
    digest: str = ""
    """A hash of the raw body. A request with the same body may be a retry."""
    previous: str = ""
    """The id of the response to continue (`previous_response_id`)."""
    conversation: str = ""
    """The name of the stored conversation to continue."""
    response_id: str = field(default="", compare=False)
    """A random id for the response, by which a later request may refer to the response."""
    instructed: bool = False
    """Whether the first entry is `instructions`. A request that continues this request does not inherit
    instructions."""
    retried: bool = False
    """Whether the client marks the request as a retry (`x-stainless-retry-count` above 0)."""
    idempotency_key: str = ""
    """The client's name for the request (`Idempotency-Key`). Requests of one session with the same key are retries."""

    @property
    def refers(self) -> bool:
        """Whether an entry names a reply instead of holding it."""
        return any(entry.refers for entry in self.entries)


@dataclass(frozen=True, slots=True)
class ReplyCall:
    """A call for the client to execute."""

    id: str
    """The call's id, created by the session: at most 64 letters, digits, `_` and `-`, unique in the session."""
    name: str
    arguments: Mapping[str, JSON] | str
    """The arguments as an object. A str is the text of an unreadable call, which is no JSON object: the client should
    reject the call."""


@dataclass(frozen=True, slots=True)
class ReplyUsage:
    """Numbers of tokens of one reply, counted by the engine."""

    prompt: int
    """Tokens of the whole prompt, including cached tokens."""
    cached: int
    sampled: int


@dataclass(frozen=True, slots=True)
class Reply:
    """One sampled turn, in the common form of all wires. A wire (the API format of a vendor) turns the Reply into its
    own response."""

    id: str
    """An id that is unique in the session. Wires derive the ids of messages and items from this id."""
    receipt: str
    """Text that identifies this reply. The client gets the text with the thoughts, as `signature` or
    `encrypted_content`, and sends the text back in later requests."""
    content: str
    reasoning: str | None
    calls: tuple[ReplyCall, ...]
    stop: Literal["end", "calls", "length", "stop_sequence"]
    stop_sequence: str | None
    usage: ReplyUsage
    without_reasoning: bool = False
    """Whether to leave out the thoughts, because the client got the thoughts before the first answer was cut off."""


class Exchange(Protocol):
    """A request in progress. Cancelling a caller that waits does not end the generation."""

    async def accepted(self) -> None:
        """Wait until the prompt is rendered and known to fit. Raises RefusedError."""
        ...

    async def replies(self) -> Sequence[Reply]:
        """Wait for the request's replies, `n` in number. Raises RefusedError."""
        ...

    def delivered(self) -> None:
        """Call this after the client has received the whole answer."""
        ...

    def lost(self) -> None:
        """Call this if the client disconnected before receiving the whole answer. A repeated request then gets the same
        reply.

        `lost` may follow `delivered`, because a connection can be reset between sending and reading.
        """
        ...


class SessionHandler(Protocol):
    """The methods of a session that an HTTP server uses."""

    @property
    def options(self) -> SessionOptions:
        """The session's options: they decide between refusing a request and leaving out parts of the request."""
        ...

    @property
    def reads_images(self) -> bool:
        """Whether the model is shown the images of a request."""
        ...

    def note_refused(self, target: str, status: int, message: str, kind: RefusalKind = "invalid") -> None:
        """Log a refusal by the server, before the request reached the session. `target` is the method and the path."""
        ...

    def ask(self, request: ChatRequest) -> Exchange:
        """Accept a request. Never raises: the methods of the returned exchange raise."""
        ...

    async def count(self, request: ChatRequest) -> int:
        """The number of tokens of the request's whole prompt. Raises RefusedError for a prompt that is too long or
        cannot be written."""
        ...
