"""The replies of a session as a tree. A prompt is where replies are sampled; behind a reply come other prompts."""

from __future__ import annotations

import secrets
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from agentrl.gateway.request import Call, Entry, Reply
from agentrl.gateway.session.matching import START, Digest, chained, digest_of, entry_digest, missing, telling
from agentrl.render.base import Rendered
from agentrl.segment import Segment
from agentrl.trajectory import assistant_message
from agentrl.types import Action, Message, ToolSpec

_NOTHING = Rendered((), ())


@dataclass(slots=True, eq=False)
class Prompt:
    """New material behind a reply, or at a root, and the replies to it. The tokens of the past stand above it."""

    index: int
    parent: Node | None
    entries: tuple[Entry, ...]
    """The new material."""
    digest: Digest
    """Of the new material."""
    known: Mapping[int, Node]
    """Replies of this session that stand in the material: index of the entry -> the reply."""
    head: Head
    number: int
    """Lines of one number share their beginning; the engine is told so."""
    grown_from: Prompt | None = None
    """An earlier prompt behind the same reply, whose replies were dropped: this one goes on where it ends."""
    rendered: Rendered = _NOTHING
    """The tokens of the material, generation prompt included."""
    messages: Sequence[Message] = ()
    length: int = 0
    """Tokens from the root to the end of this prompt; 0 until it is rendered."""
    replies: list[Node] = field(default_factory=list)

    @property
    def before(self) -> int:
        """Tokens from the root to its parent's end."""
        return 0 if self.parent is None else self.parent.prompt.length + len(self.parent.turn.ids)

    @property
    def top(self) -> Prompt:
        """The root above it, or itself."""
        prompt = self
        while prompt.parent is not None:
            prompt = prompt.parent.prompt
        return prompt

    def ask_again(self) -> None:
        """The client asks for replies here: those that it had here, or at a beginning of this prompt, were dropped."""
        for node in (*self.replies, *(self.grown_from.replies if self.grown_from else ())):
            node.asked_again = True

    def line(self) -> list[Node]:
        """The replies above it, from the root on."""
        found, node = list[Node](), self.parent
        while node is not None:
            found.append(node)
            node = node.prompt.parent
        return found[::-1]

    def ids(self) -> array[int]:
        """All tokens that the engine gets."""
        found = array("i")
        for node in self.line():
            found.extend(node.prompt.rendered.tokens)
            found.extend(node.turn.ids)
        found.extend(self.rendered.tokens)
        return found

    def history(self) -> list[Message]:
        """The messages before this prompt."""
        return [message for node in self.line() for message in (*node.prompt.messages, *node.messages)]


@dataclass(frozen=True, slots=True)
class Head:
    """What a root begins with besides its entries."""

    tools: tuple[ToolSpec, ...]
    digest: Digest
    """Of the tools."""
    branch: str
    """What the client calls this line of work."""


@dataclass(slots=True, eq=False)
class Node:
    """One reply: what was sampled, and how it was sent to the client."""

    index: int
    prompt: Prompt
    id: str
    """Unique in the session. It stands in all ids that are made for this reply."""
    turn: Segment = field(default_factory=Segment)
    """What was sampled. The prompt's tokens are dropped once it is whole."""
    action: Action | None = None
    """None until the turn is whole; without its tokens."""
    sent: Entry | None = None
    """The reply as the client got it."""
    reply: Reply | None = None
    call_ids: Mapping[str, str] = field(default_factory=dict)
    """Id on the wire -> the id of the call in the action."""
    messages: Sequence[Message] = ()
    lean: Digest = START
    delivered: bool = False
    """The client has got it: it said so, or went on behind it."""
    lost: bool = False
    """The client went away before it got it."""
    told: bool = False
    """The client has told it back."""
    asked_again: bool = False
    """The client asked for another reply in its place."""
    reused: bool = False
    """It stands in the material of another prompt."""
    prompts: dict[Digest, Prompt] = field(default_factory=dict)
    """What came behind it, by the digest of the material."""

    @property
    def children(self) -> Iterator[Node]:
        return (node for prompt in self.prompts.values() for node in prompt.replies)

    @property
    def claimed(self) -> bool:
        """The client got it, or may still get it."""
        return self.delivered or self.reused or not self.lost

    @property
    def dropped(self) -> bool:
        """The client asked for another reply, and uses this one nowhere."""
        return self.asked_again and not self.reused and not any(self.children)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a request belongs in the tree."""

    parent: Node | None
    entries: tuple[Entry, ...]
    """The new material behind the parent."""
    digest: Digest
    """Of the new material."""
    known: Mapping[int, Node]
    told: Sequence[tuple[Node, Entry]]
    """The replies above that the client tells for the first time, and how it does."""
    grown_from: Prompt | None
    prompt: Prompt | None
    """The same prompt, if it was asked before."""
    rest: Entry | None = None
    """What the client has not got of the parent, if it tells a beginning of it only."""


@dataclass(slots=True)
class _Cursor:
    """A way through the tree that matches the entries so far."""

    node: Node | None
    start: int
    digest: Digest = START
    grown_from: Prompt | None = None
    entry: Entry | None = None
    """What told the node."""
    before: _Cursor | None = None
    """The way up to the node's prompt."""

    @property
    def told(self) -> list[tuple[Node, Entry]]:
        """The replies on this way that were not told before."""
        found, cursor = list[tuple[Node, Entry]](), self
        while cursor.node is not None and cursor.entry is not None and not cursor.node.told:
            found.append((cursor.node, cursor.entry))
            assert cursor.before is not None
            cursor = cursor.before
        return found[::-1]


class Tree:
    """All replies of a session."""

    def __init__(self, *, as_sent: bool = False, tag: str | None = None) -> None:
        self.tag = tag or f"g{secrets.token_hex(4)}"
        """Stands in all ids, so that they are known in whatever a client makes of them."""
        self.prompts: list[Prompt] = []
        self.nodes: list[Node] = []
        self._as_sent = as_sent
        self._roots: dict[tuple[Digest, Digest], Prompt] = {}
        self._alike: dict[Digest, Node] = {}
        """The latest reply of each normal form."""
        self._numbers = 0

    def named(self, entry: Entry) -> Node | None:
        """The reply that the ids in an entry name."""
        for text in (*entry.receipts, *(call.id for call in entry.calls), *(() if entry.receipts else (entry.text,))):
            number = self._number_in(text)
            if number is not None and number < len(self.nodes):
                node = self.nodes[number]
                if node.sent is not None and not (self._as_sent and telling(node.sent, entry) == "meaning"):
                    return node
        return None

    def _number_in(self, text: str) -> int | None:
        """The number of the reply that an id names."""
        digits = text.partition(f"{self.tag}n")[2][:5]
        return int(digits) if len(digits) == 5 and digits.isascii() and digits.isdigit() else None

    def find(self, entries: Sequence[Entry], tools: Digest) -> Place:
        """Where the entries belong: behind the deepest reply that they tell, the latest of twins."""
        cursors = [_Cursor(None, 0)]
        named = [self.named(entry) if entry.role == "assistant" else None for entry in entries]
        for i, (entry, name) in enumerate(zip(entries, named, strict=True)):
            digest = digest_of("reply", name.id) if name else entry_digest(entry)
            found = self._behind(cursors, entry, name, digest, tools, i) if entry.role == "assistant" else None
            if found:
                cursors = found
                continue
            for cursor in cursors:
                cursor.grown_from = self._prompt(cursor, tools) or cursor.grown_from
                cursor.digest = chained(cursor.digest, digest)
        best = max(cursors, key=lambda cursor: (cursor.node is not None and cursor.node.delivered, _index(cursor)))
        return self._place(best, entries, named, tools)

    def attach(self, place: Place, head: Head) -> Prompt:
        """The prompt at a place, made if it is new. `head` is that of a root."""
        if place.prompt is not None:
            return place.prompt
        above, grown_from = place.parent, place.grown_from
        if above is not None:
            head, number = above.prompt.head, above.prompt.number
        elif grown_from is not None:
            number = grown_from.number
        else:
            number, self._numbers = self._numbers, self._numbers + 1
        prompt = Prompt(len(self.prompts), above, place.entries, place.digest, place.known, head, number, grown_from)
        self.keep(prompt)
        return prompt

    def keep(self, prompt: Prompt) -> None:
        """Put a prompt in its place."""
        self.prompts.append(prompt)
        if prompt.parent is None:
            self._roots[prompt.head.digest, prompt.digest] = prompt
        else:
            prompt.parent.prompts[prompt.digest] = prompt
        for node in prompt.known.values():
            node.reused = True

    def add(self, prompt: Prompt) -> Node:
        """A new reply, which is not sampled yet."""
        index = len(self.nodes)
        node = Node(index, prompt, f"{self.tag}n{index:05}")
        self.nodes.append(node)
        prompt.replies.append(node)
        return node

    def commit(self, node: Node, action: Action, reply: Reply, call_ids: Mapping[str, str]) -> None:
        """A reply is whole: from now on requests can be matched with it."""
        node.turn.drop_prompt()
        self.settle(node, action, reply, call_ids)

    def settle(self, node: Node, action: Action, reply: Reply, call_ids: Mapping[str, str]) -> None:
        """What follows from a reply."""
        calls = tuple(Call(call.id, call.name, call.arguments) for call in reply.calls)
        node.action, node.reply, node.call_ids = replace(action, tokens=()), reply, call_ids
        node.sent = Entry("assistant", reply.content, reply.reasoning, calls, (reply.id, reply.receipt))
        node.messages = (assistant_message(action),)
        node.lean = entry_digest(node.sent)
        if node.sent.text.strip() or calls:
            self._alike[node.lean] = node

    def heads(self) -> Iterator[Digest]:
        """The digest of the tools of each root, latest first."""
        return iter(dict.fromkeys(tools for tools, _ in reversed(self._roots)))

    def _behind(
        self, cursors: Sequence[_Cursor], entry: Entry, name: Node | None, digest: Digest, tools: Digest, at: int
    ) -> list[_Cursor]:
        """The ways on which an assistant's entry tells a reply, behind that reply."""
        for cursor in cursors:
            if name and cursor.node is name and cursor.start == at:  # one reply told in two messages
                cursor.start, cursor.entry = at + 1, _whole(cursor.entry, entry)
                return [cursor]
        return [
            _Cursor(node, at + 1, entry=entry, before=cursor)
            for cursor in cursors
            for node in self._replies(cursor, tools)
            if (node is name if name else _is(node, entry, digest))
        ]

    def _prompt(self, cursor: _Cursor, tools: Digest) -> Prompt | None:
        if cursor.node is None:
            return self._roots.get((tools, cursor.digest))
        return cursor.node.prompts.get(cursor.digest)

    def _replies(self, cursor: _Cursor, tools: Digest) -> Sequence[Node]:
        prompt = self._prompt(cursor, tools)
        return () if prompt is None else prompt.replies

    def _place(self, cursor: _Cursor, entries: Sequence[Entry], named: Sequence[Node | None], tools: Digest) -> Place:
        start, node = cursor.start, cursor.node
        known = dict[int, Node]()
        for i, entry in enumerate(entries[start:]):
            reply = named[start + i] if entry.role == "assistant" else None
            if entry.role == "assistant" and (reply := reply or self._alike.get(entry_digest(entry))) is not None:
                known[i] = reply
        rest = None
        if node is not None and node.sent is not None and cursor.entry is not None and start == len(entries):
            rest = missing(node.sent, cursor.entry) if named[-1] is node else None
        return Place(
            node,
            tuple(entries[start:]),
            cursor.digest,
            known,
            cursor.told,
            cursor.grown_from,
            self._prompt(cursor, tools),
            rest,
        )


def _is(node: Node, entry: Entry, digest: Digest) -> bool:
    """Whether an entry without ids tells this reply. Thoughts are compared where there are any."""
    if node.sent is None or node.lean != digest:
        return False
    return not entry.reasoning or entry.reasoning.strip() == (node.sent.reasoning or "").strip()


def _whole(before: Entry | None, entry: Entry) -> Entry:
    """Two entries that tell one reply, as one."""
    if before is None:
        return entry
    text, reasoning = "\n".join(filter(None, [before.text, entry.text])), before.reasoning or entry.reasoning
    return replace(before, text=text, reasoning=reasoning, calls=(*before.calls, *entry.calls))


def _index(cursor: _Cursor) -> int:
    return -1 if cursor.node is None else cursor.node.index
