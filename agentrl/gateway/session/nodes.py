"""The elements of a session's tree: prompts, and the replies sampled after a prompt. A root is a prompt that begins a
conversation. An echo is a client's copy of a reply in a later request."""

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
    """The new entries of a request after its parent (a reply; None at a root), and the replies to them. The nodes above
    in the tree hold the earlier tokens."""

    index: int
    parent: Node | None
    entries: tuple[Entry, ...]
    """The new entries."""
    digest: Digest
    """The digest of the new entries."""
    known_replies: Mapping[int, Node]
    """Index of a new entry -> the reply of this session that the entry echoes."""
    head: Head
    number: int
    """Number of the line of conversation. Lines with the same number share their beginning. The number is a part of the
    session id for the engine."""
    grown_from: Prompt | None = None
    """An earlier prompt after the same parent, with whose entries this prompt begins."""
    tells: tuple[Node, ...] = ()
    """All replies of this session that the new entries echo, even in other words, in order; a superset of
    `known_replies`."""
    tools: Digest = START
    """The digest of the request's tools."""
    branch: str = ""
    """The branch name of the first request with this prompt."""
    continued: bool = False
    """Whether the replies continue the last entry, or the parent, instead of beginning a new message."""
    before_last: Digest = START
    """The digest of all new entries except the last."""
    requests: list[int] = field(default_factory=list)
    """The numbers of the requests with this prompt."""
    rendered: Rendered = _NOTHING
    """The tokens of the new entries and of the generation prompt."""
    messages: Sequence[Message] = ()
    length: int = 0
    """Number of tokens from the root to the end of this prompt; 0 before the render."""
    replies: list[Node] = field(default_factory=list)
    top: Prompt = field(init=False, repr=False)
    """The root above this prompt; the prompt itself if it is a root."""

    def __post_init__(self) -> None:
        self.top = self if self.parent is None else self.parent.prompt.top

    @property
    def before(self) -> int:
        """Number of tokens from the root to the end of the parent."""
        return 0 if self.parent is None else self.parent.prompt.length + len(self.parent.turn.ids)

    def ask(self, number: int, branch: str) -> None:
        """Record a request with this prompt. The branch has thereby dropped its earlier replies to this prompt and to
        `replaces`.

        Replies for which a client still waits are not dropped, because a client may send several requests at the same
        time.
        """
        self.requests.append(number)
        for node in (*self.replies, *(self.replaces.replies if self.replaces else ())):
            node.asked_again |= node.branch == branch and (node.delivered or node.lost)

    @property
    def replaces(self) -> Prompt | None:
        """`grown_from`, if its replies are not continued. None if this prompt continues such a reply, echoed in other
        words."""
        before = self.grown_from
        index = 0 if before is None else len(before.entries)
        echoes = index + 1 < len(self.entries) and self.entries[index].role == "assistant"
        return None if echoes else before

    def line(self) -> list[Node]:
        """The replies above this prompt in the tree, from the root on."""
        nodes, node = list[Node](), self.parent
        while node is not None:
            nodes.append(node)
            node = node.prompt.parent
        return nodes[::-1]

    def whole(self) -> Rendered:
        """All tokens from the root to the end of this prompt, with their images: the input of the engine."""
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
    """The properties of a conversation that a root fixes, apart from its entries."""

    tools: tuple[ToolSpec, ...]
    digest: Digest
    """The digest of the tools and the arguments of the template."""
    branch: str
    """The name of the branch of the session, from the client."""
    template_kwargs: Mapping[str, JSON] = field(default_factory=dict)
    """The request's arguments of the chat template."""
    tools_digest: Digest = START


@dataclass(slots=True, eq=False)
class Node:
    """A reply of the model: the sampled turn, and its form for the client."""

    index: int
    prompt: Prompt
    id: str
    """An id that is unique in the session. All ids that the client gets for this reply contain this id."""
    branch: str = ""
    """The branch of the request for this reply. Equal prompts of two branches share a Prompt."""
    turn: Segment = field(default_factory=Segment)
    """The sampled tokens. The prompt's tokens are dropped once the turn is complete."""
    action: Action | None = None
    """The action of the turn, without its tokens. None until the turn is complete."""
    sent: Entry | None = None
    """The reply in the form that the client got."""
    reply: Reply | None = None
    call_ids: Mapping[str, str] = field(default_factory=dict)
    """A call's id for the client -> the call's id in the action."""
    messages: Sequence[Message] = ()
    whole: Entry | None = None
    """The reply followed by its stop string. The client gets no stop string, but some clients append the stop string
    again."""
    joined: Entry | None = None
    """If the reply continues a message: the message and the reply joined, as a client may echo them."""
    first_echo: Entry | None = None
    """The client's first echo of the reply."""
    logged: set[Digest] = field(default_factory=set)
    """Digests of the changed echoes that were already logged."""
    delivered: bool = False
    """Whether the client got the reply: the reply was sent completely, or a later request continues it."""
    lost: bool = False
    """Whether the client disconnected before receiving the reply."""
    echoed: bool = False
    """Whether the client has echoed the reply."""
    asked_again: bool = False
    """Whether the client asked for another reply instead."""
    reused: bool = False
    """Whether a new entry of another prompt echoes the reply."""
    prompts: dict[Digest, Prompt] = field(default_factory=dict)
    """The prompts after the reply, by the digest of their entries."""

    def telling(self, entry: Entry) -> Telling:
        """The difference between this reply and an entry that echoes it."""
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
        """Whether the client got the reply, or may still get it: False only for a lost reply that no later request
        uses."""
        return self.delivered or self.reused or not self.lost

    @property
    def dropped(self) -> bool:
        """Whether the client asked for another reply instead, and no later request uses this reply."""
        return self.asked_again and not self.reused and not any(self.children)


def joined_to(history: list[Message], reply: Sequence[Message]) -> Sequence[Message]:
    """The messages of a reply that continues the last message of a history. The last message is removed from the
    history and joined to the reply."""
    if not history or history[-1]["role"] != "assistant" or not reply:
        return reply
    beginning, (first, *rest) = history.pop(), reply
    thoughts = beginning.get("reasoning_content") or first.get("reasoning_content")
    whole = {**first, "content": f"{beginning.get('content') or ''}{first.get('content') or ''}"}
    return [{**whole, **({"reasoning_content": thoughts} if thoughts else {})}, *rest]


def beginning_of(prompt: Prompt) -> Entry | None:
    """The assistant's message right before the replies to a prompt. The replies continue the message, or a client may
    join message and reply."""
    if prompt.entries:
        return prompt.entries[-1] if prompt.entries[-1].role == "assistant" else None
    return None if prompt.parent is None else prompt.parent.joined or prompt.parent.sent


def start_of(node: Node) -> tuple[int, Digest, Digest]:
    """A key for the start of the message that a reply ends: the reply before the message, the root's tools, and the
    digest of the entries between."""
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
