"""The parts of a session's tree: prompts, and their sampled replies."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from agentrl.chat.request import Entry, Reply
from agentrl.gateway.session.matching import START, Digest, Telling, telling, words
from agentrl.trajectory.segment import Segment
from agentrl.types import JSON, Action, Message, Rendered, RenderedImage, ToolSpec

_NOTHING = Rendered((), ())


@dataclass(slots=True, eq=False)
class Prompt:
    """New entries after a reply, or at a root, and their replies. The nodes above hold the earlier tokens."""

    index: int
    parent: Node | None
    entries: tuple[Entry, ...]
    """The new entries."""
    digest: Digest
    """The digest of the new entries."""
    known_replies: Mapping[int, Node]
    """Replies of this session among the new entries: index of the entry -> the reply."""
    head: Head
    number: int
    """Lines with the same number share their beginning. The engine gets the number as part of the session id."""
    grown_from: Prompt | None = None
    """An earlier prompt after the same reply. This prompt begins with the entries of the earlier prompt."""
    tells: tuple[Node, ...] = ()
    """This session's replies that the entries echo in any words, in order. They include `known_replies`."""
    tools: Digest = START
    """The digest of the request's tools."""
    branch: str = ""
    """The branch name of the prompt's first request."""
    continued: bool = False
    """Whether the replies continue the last entry, or the parent, instead of beginning a new message."""
    before_last: Digest = START
    """The digest of the new entries without the last entry."""
    requests: list[int] = field(default_factory=list)
    """The numbers of the requests for replies here."""
    rendered: Rendered = _NOTHING
    """The tokens of the new entries, generation prompt included."""
    messages: Sequence[Message] = ()
    length: int = 0
    """Tokens from the root to the end of this prompt; 0 before the render."""
    replies: list[Node] = field(default_factory=list)
    top: Prompt = field(init=False, repr=False)
    """The root above the prompt, or the prompt itself."""

    def __post_init__(self) -> None:
        self.top = self if self.parent is None else self.parent.prompt.top

    @property
    def before(self) -> int:
        """Tokens from the root to the parent's end."""
        return 0 if self.parent is None else self.parent.prompt.length + len(self.parent.turn.ids)

    def ask(self, number: int, branch: str) -> None:
        """A branch asks for replies here. Earlier replies of the branch, here or at a beginning of this prompt, were
        dropped.

        Replies at a beginning were not dropped if this prompt echoes a reply in other words. A client may also ask
        several times at once: replies with a waiting client are not dropped.
        """
        self.requests.append(number)
        for node in (*self.replies, *(self.replaces.replies if self.replaces else ())):
            node.asked_again |= node.branch == branch and (node.delivered or node.lost)

    @property
    def replaces(self) -> Prompt | None:
        """The earlier prompt at the beginning of this prompt. None if this prompt then echoes the earlier reply in
        other words."""
        before = self.grown_from
        index = 0 if before is None else len(before.entries)
        echoes = index + 1 < len(self.entries) and self.entries[index].role == "assistant"
        return None if echoes else before

    def line(self) -> list[Node]:
        """The replies above the prompt, from the root on."""
        nodes, node = list[Node](), self.parent
        while node is not None:
            nodes.append(node)
            node = node.prompt.parent
        return nodes[::-1]

    def whole(self) -> Rendered:
        """All tokens for the engine, with their images."""
        ids, media = array("i"), list[RenderedImage]()
        for prompt, turn in (*((node.prompt, node.turn.ids) for node in self.line()), (self, ())):
            media += (image.moved(len(ids)) for image in prompt.rendered.media)
            ids.extend(prompt.rendered.tokens)
            ids.extend(turn)
        return Rendered(ids, (), self.rendered.thinking, media=tuple(media))

    def history(self) -> list[Message]:
        """The messages before this prompt."""
        messages = list[Message]()
        for node in self.line():
            messages += node.prompt.messages
            messages += joined_to(messages, node.messages) if node.prompt.continued else node.messages
        return messages


@dataclass(frozen=True, slots=True)
class Head:
    """The beginning of a root, without its entries."""

    tools: tuple[ToolSpec, ...]
    digest: Digest
    """The digest of the tools and the arguments of the template."""
    branch: str
    """The client's name for this line of work."""
    template_kwargs: Mapping[str, JSON] = field(default_factory=dict)
    """The request's arguments of the chat template."""
    tools_digest: Digest = START


@dataclass(slots=True, eq=False)
class Node:
    """One reply: the sampled turn, and the entry for the client."""

    index: int
    prompt: Prompt
    id: str
    """Unique in the session. All ids of this reply contain this id."""
    branch: str = ""
    """The name of the branch that asked. Equal prompts of two branches are one Prompt."""
    turn: Segment = field(default_factory=Segment)
    """The sampled tokens. The prompt's tokens are dropped once the turn is complete."""
    action: Action | None = None
    """The action without tokens. None until the turn is complete."""
    sent: Entry | None = None
    """The reply as the client got the text."""
    reply: Reply | None = None
    call_ids: Mapping[str, str] = field(default_factory=dict)
    """Id on the wire -> the id of the call in the action."""
    messages: Sequence[Message] = ()
    whole: Entry | None = None
    """The reply with the unsent stop string at its end. Some clients put the stop string back."""
    joined: Entry | None = None
    """The whole message, if the reply continues a message: the client may join the beginning and the reply."""
    first_echo: Entry | None = None
    """The client's first echo of the reply."""
    logged: set[Digest] = field(default_factory=set)
    """Digests of the changed echoes in the log."""
    delivered: bool = False
    """Whether the client got the reply: sent completely, or continued by a later request."""
    lost: bool = False
    """Whether the client disconnected before receiving the reply."""
    echoed: bool = False
    """Whether the client has echoed the reply."""
    asked_again: bool = False
    """Whether the client asked for another reply instead."""
    reused: bool = False
    """Whether the entries of another prompt echo the reply."""
    prompts: dict[Digest, Prompt] = field(default_factory=dict)
    """The prompts after the reply, by the digest of their entries."""

    def telling(self, entry: Entry) -> Telling:
        """How an entry echoes this reply."""
        assert self.sent is not None
        if self.whole is not None and telling(self.whole, entry) != "meaning":
            return "verbatim"
        if self.joined is not None and words(self.joined) == words(entry):
            return "verbatim" if self.joined.text == entry.text else "spelling"
        return telling(self.sent, entry)

    def edited(self, entry: Entry) -> bool:
        """Whether an entry differs in meaning from this reply and from the client's first echo."""
        if self.first_echo is None or self.first_echo == entry:
            return False
        return self.telling(entry) == "meaning" and telling(self.first_echo, entry) == "meaning"

    @property
    def children(self) -> Iterator[Node]:
        return (node for prompt in self.prompts.values() for node in prompt.replies)

    @property
    def claimed(self) -> bool:
        """Whether the client got the reply, or may still get the reply."""
        return self.delivered or self.reused or not self.lost

    @property
    def dropped(self) -> bool:
        """Whether the client asked for another reply, and uses this reply nowhere."""
        return self.asked_again and not self.reused and not any(self.children)


def joined_to(history: list[Message], reply: Sequence[Message]) -> Sequence[Message]:
    """The messages of a reply that continues a history's last message. The last message moves from the history into the
    result."""
    if not history or history[-1]["role"] != "assistant" or not reply:
        return reply
    beginning, (first, *rest) = history.pop(), reply
    thoughts = beginning.get("reasoning_content") or first.get("reasoning_content")
    whole = {**first, "content": f"{beginning.get('content') or ''}{first.get('content') or ''}"}
    return [{**whole, **({"reasoning_content": thoughts} if thoughts else {})}, *rest]


def beginning_of(prompt: Prompt) -> Entry | None:
    """The message before the replies to a prompt. The replies continue the message, or a client may join both."""
    if prompt.entries:
        return prompt.entries[-1] if prompt.entries[-1].role == "assistant" else None
    return None if prompt.parent is None else prompt.parent.joined or prompt.parent.sent


def start_of(node: Node) -> tuple[int, Digest, Digest]:
    """The start of a reply's message: the reply before, the root's tools, the digest of the entries between."""
    prompt = node.prompt
    above = -1 if prompt.parent is None else prompt.parent.index
    if not prompt.entries and prompt.parent is not None:
        return start_of(prompt.parent)
    continues = bool(prompt.entries) and prompt.entries[-1].role == "assistant"
    return above, prompt.head.digest, prompt.before_last if continues else prompt.digest


def spaces_before(prompt: Prompt, action: Action) -> str:
    """The spaces between a message and the reply that continues the message: `    return 1` after `def f():`."""
    if not prompt.continued or action.reasoning is not None:
        return ""
    return action.text[: len(action.text) - len(action.text.lstrip())]
