"""The replies of a session as a tree. A prompt is where replies are sampled; behind a reply come other prompts."""

from __future__ import annotations

import secrets
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher

from agentrl.chat.request import Call, Entry, Reply
from agentrl.gateway.session.matching import (
    START,
    Digest,
    Telling,
    chained,
    digest_of,
    entry_digest,
    missing,
    telling,
    thoughtless,
)
from agentrl.render.base import Rendered
from agentrl.trajectory.segment import Segment
from agentrl.trajectory.trajectory import assistant_message
from agentrl.types import Action, Message, ToolSpec

_NOTHING = Rendered((), ())
_COMPARED, _LIKE = 1000, 0.5
"""How much of two texts is compared, in characters, and which share of it must be the same."""
_CALLS_AS_TEXT = "Calling tools:"
"""What smolagents writes before the calls of a reply that it tells as text."""


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
    """An earlier prompt behind the same reply, with which this one begins."""
    tells: tuple[Node, ...] = ()
    """The replies of this session that the material tells in any words, in order; those of `known` are among them."""
    tools: Digest = START
    """Of the tools that its request had."""
    branch: str = ""
    """What its request called this line of work."""
    asked: list[int] = field(default_factory=list)
    """The numbers of the requests for replies here."""
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

    def ask(self, number: int) -> None:
        """The client asks for replies here: those that it had here, or at a beginning of this prompt, were dropped.

        Where an assistant's entry stands in the place of the earlier replies, it tells one of them in other words.
        """
        self.asked.append(number)
        for node in (*self.replies, *(self.replaces.replies if self.replaces else ())):
            node.asked_again = True

    @property
    def replaces(self) -> Prompt | None:
        """The earlier prompt with which this one begins, unless it tells a reply to that in other words."""
        before = self.grown_from
        at = 0 if before is None else len(before.entries)
        told = at + 1 < len(self.entries) and self.entries[at].role == "assistant"
        return None if told else before

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
    whole: Entry | None = None
    """The reply with the stop string at which it ended, which was not sent: some clients put it back."""
    told_as: Entry | None = None
    """How the client told it first."""
    noted: set[Digest] = field(default_factory=set)
    """Other words in which the client told it, which the log has."""
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

    def telling(self, entry: Entry) -> Telling:
        """How an entry tells this reply."""
        assert self.sent is not None
        if self.whole is not None and telling(self.whole, entry) != "meaning":
            return "verbatim"
        return telling(self.sent, entry)

    def edited(self, entry: Entry) -> bool:
        """Whether an entry tells it with a meaning that is neither its own nor what the client made of it first."""
        return (
            self.told_as is not None and self.telling(entry) == "meaning" and telling(self.told_as, entry) == "meaning"
        )

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
    tells: Sequence[tuple[Node, Entry]]
    """The replies that the material tells in any words, in order, and how."""
    told: Sequence[tuple[Node, Entry]]
    """The replies that the client tells for the first time, and how it does."""
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
    replaced: dict[int, Prompt] = field(default_factory=dict)
    """Where in the entries an assistant's words stand that nobody sampled, in the place of the replies to a prompt."""

    @property
    def told(self) -> list[tuple[Node, Entry]]:
        """The replies on this way that were not told before."""
        found, cursor = list[tuple[Node, Entry]](), self
        while cursor.node is not None and cursor.entry is not None and not cursor.node.told:
            found.append((cursor.node, cursor.entry))
            assert cursor.before is not None
            cursor = cursor.before
        return found[::-1]


@dataclass(frozen=True, slots=True)
class _Read:
    """The entries of a request as the tree takes them."""

    entries: list[Entry]
    named: list[Node | None]
    """For each the reply that its ids name."""
    reworded: dict[int, Node]
    """Index of an entry whose own words count -> the reply that its ids name."""


class Tree:
    """All replies of a session."""

    def __init__(self, *, as_sent: bool = False, tag: str | None = None) -> None:
        self.tag = tag or f"g{secrets.token_hex(4)}"
        """Stands in all ids, so that they are known in whatever a client makes of them."""
        self.prompts: list[Prompt] = []
        self.nodes: list[Node] = []
        self._as_sent = as_sent
        self._roots: dict[tuple[Digest, Digest], Prompt] = {}
        self._alike: dict[Digest, list[Node]] = {}
        """The replies of each normal form."""
        self._numbers = 0

    def _name(self, entry: Entry) -> Node | None:
        """The reply that the ids in an assistant's entry name."""
        found = (self._with_id(text) for text in (*entry.receipts, *(call.id for call in entry.calls)))
        return next(filter(None, found), None) or (None if entry.receipts else self._written_out(entry))

    def _written_out(self, entry: Entry) -> Node | None:
        """The reply whose calls a client has written into the text, as smolagents does: behind the reply's own words.

        Words that are a reply's themselves are no calls written out, whatever ids they quote.
        """
        words, form, calls = entry.text.partition(_CALLS_AS_TEXT)
        node = self._with_id(calls) if form and entry_digest(entry) not in self._alike else None
        if node is None or node.sent is None or not node.sent.calls:
            return None
        return node if not words.strip() or thoughtless(words) == thoughtless(node.sent.text) else None

    def _with_id(self, text: str) -> Node | None:
        """The reply that an id names."""
        digits = text.partition(f"{self.tag}n")[2][:5]
        number = int(digits) if len(digits) == 5 and digits.isascii() and digits.isdigit() else len(self.nodes)
        node = self.nodes[number] if number < len(self.nodes) else None
        return node if node is not None and node.sent is not None else None

    def _read(self, entries: Sequence[Entry]) -> _Read:
        """The entries, and which of them name a reply. One that is told in several messages becomes one entry."""
        read = _Read([], [], {})
        for entry in entries:
            node = self._name(entry) if entry.role == "assistant" else None
            if node is not None and read.named[-1:] == [node]:
                read.entries[-1] = _whole(read.entries[-1], entry)
            else:
                read.entries.append(entry)
                read.named.append(node)
        for at, (entry, node) in enumerate(zip(read.entries, read.named, strict=True)):
            if node is not None and self._is_reworded(node, entry, last=at == len(read.entries) - 1):
                read.reworded[at], read.named[at] = node, None
        return read

    def _is_reworded(self, node: Node, told: Entry, *, last: bool) -> bool:
        """Whether a client's words count, and not the reply that their ids name. The last message may tell a part."""
        if self._as_sent:
            return node.telling(told) == "meaning"
        return node.edited(told) and not last

    def find(self, entries: Sequence[Entry], tools: Digest) -> Place:
        """Where the entries belong: behind the deepest reply that they tell, the latest of twins."""
        cursors, read = [_Cursor(None, 0)], self._read(entries)
        for i, (entry, name) in enumerate(zip(read.entries, read.named, strict=True)):
            digest = digest_of("reply", name.id) if name else entry_digest(entry)
            found = self._behind(cursors, entry, name, digest, tools, i) if entry.role == "assistant" else None
            if found:
                cursors = found
                continue
            for cursor in cursors:
                here = self._prompt(cursor, tools)
                if here is not None and entry.role == "assistant":
                    cursor.replaced[i] = here
                cursor.grown_from = here or cursor.grown_from
                cursor.digest = chained(cursor.digest, digest)
        best = max(cursors, key=lambda cursor: (cursor.node is not None and cursor.node.delivered, _index(cursor)))
        return self._place(best, read, tools)

    def attach(self, place: Place, head: Head) -> Prompt:
        """The prompt at a place, made if it is new. `head` is that of the request."""
        if place.prompt is not None:
            return place.prompt
        above, grown_from, tools, branch = place.parent, place.grown_from, head.digest, head.branch
        tells = tuple(dict.fromkeys(node for node, _ in place.tells))
        if above is not None:
            head, number = above.prompt.head, above.prompt.number
        elif grown_from is not None:
            number = grown_from.number
        else:
            number, self._numbers = self._numbers, self._numbers + 1
        prompt = Prompt(
            len(self.prompts),
            above,
            place.entries,
            place.digest,
            place.known,
            head,
            number,
            grown_from,
            tells,
            tools,
            branch,
        )
        self.keep(prompt)
        return prompt

    def keep(self, prompt: Prompt) -> None:
        """Put a prompt in its place."""
        self.prompts.append(prompt)
        if prompt.parent is None:
            self._roots[prompt.head.digest, prompt.digest] = prompt
        else:
            prompt.parent.prompts[prompt.digest] = prompt
        for node in prompt.tells:
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
        if reply.stop_sequence is not None:
            node.whole = replace(node.sent, text=node.sent.text + reply.stop_sequence)
        for form in filter(None, (node.sent, node.whole)):
            if form.text.strip() or calls:
                self._alike.setdefault(entry_digest(form), []).append(node)

    def heads(self) -> Iterator[Digest]:
        """The digest of the tools of each root, latest first."""
        return iter(dict.fromkeys(tools for tools, _ in reversed(self._roots)))

    def _behind(
        self, cursors: Sequence[_Cursor], entry: Entry, name: Node | None, digest: Digest, tools: Digest, at: int
    ) -> list[_Cursor]:
        """The ways on which an assistant's entry tells a reply, behind that reply."""
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

    def _place(self, cursor: _Cursor, read: _Read, tools: Digest) -> Place:
        start, node = cursor.start, cursor.node
        known, tells, told = dict[int, Node](), list[tuple[Node, Entry]](), cursor.told
        for i, entry in enumerate(read.entries[start:], start):
            if entry.role != "assistant":
                continue
            reply = None if i in read.reworded else self._told_here(i, cursor, read, tools)
            if reply is not None:
                known[i - start] = reply
                told += [(reply, entry)] if read.named[i] is not None and not reply.told else []
            elif (reply := read.reworded.get(i)) is None and i in cursor.replaced and i < len(read.entries) - 1:
                reply = _nearest(cursor.replaced[i].replies, entry)
            tells += [(reply, entry)] if reply is not None else []
        rest = None
        if node is not None and node.sent is not None and cursor.entry is not None and start == len(read.entries):
            rest = missing(node.sent, cursor.entry) if read.named[-1] is node else None
        return Place(
            node,
            tuple(read.entries[start:]),
            cursor.digest,
            known,
            tells,
            told,
            cursor.grown_from,
            self._prompt(cursor, tools),
            rest,
        )

    def _told_here(self, at: int, cursor: _Cursor, read: _Read, tools: Digest) -> Node | None:
        """The reply that an assistant's entry in new material tells: by its ids, or in the same words.

        Of several with the same words: one in a conversation that begins like this one, the latest of them.
        """
        if read.named[at] is not None:
            return read.named[at]
        top, start = None if cursor.node is None else cursor.node.prompt.top, _start(read.entries)

        def key(node: Node) -> tuple[bool, int, bool, int]:
            root = node.prompt.top
            shared = sum(one == other for one, other in zip(_start(root.entries), start, strict=True))
            return root is top, shared, root.head.digest == tools, node.index

        return max(self._alike.get(entry_digest(read.entries[at]), ()), key=key, default=None)


def _start(entries: Sequence[Entry]) -> tuple[str, str]:
    """How a conversation begins: its first text, and the first of a user."""
    return entries[0].text, next((entry.text for entry in entries if entry.role == "user"), "")


def _is(node: Node, entry: Entry, digest: Digest) -> bool:
    """Whether an entry without ids tells this reply. Thoughts are compared where there are any."""
    if node.sent is None or digest not in [entry_digest(form) for form in (node.sent, node.whole) if form]:
        return False
    return not entry.reasoning or entry.reasoning.strip() == (node.sent.reasoning or "").strip()


def _whole(before: Entry, entry: Entry) -> Entry:
    """Two entries that tell one reply, as one."""
    text, reasoning = "\n".join(filter(None, [before.text, entry.text])), before.reasoning or entry.reasoning
    return replace(before, text=text, reasoning=reasoning, calls=(*before.calls, *entry.calls))


def _index(cursor: _Cursor) -> int:
    return -1 if cursor.node is None else cursor.node.index


def _nearest(replies: Sequence[Node], entry: Entry) -> Node | None:
    """The reply that an entry in its place tells in other words: of several, one that is like it, else the latest."""

    def likeness(node: Node) -> float:
        assert node.sent is not None
        ratio = SequenceMatcher(None, node.sent.text[:_COMPARED], entry.text[:_COMPARED], autojunk=False).ratio()
        return ratio if ratio > _LIKE else 0.0

    sent = [node for node in replies if node.sent is not None]
    if len(sent) < 2:
        return next(iter(sent), None)
    return max(sent, key=lambda node: (likeness(node), node.index))
