"""The replies of a session as a tree: replies are sampled after a prompt, and further prompts follow a reply.

An echo is a client's copy of a reply in a later request, perhaps changed.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher

from agentrl.chat.request import Call, Entry, Reply
from agentrl.gateway.session.matching import (
    START,
    Digest,
    chained,
    digest_of,
    entry_digest,
    missing,
    thoughtless,
    words,
)
from agentrl.gateway.session.nodes import Head, Node, Prompt, beginning_of, spaces_before, start_of
from agentrl.trajectory.trajectory import assistant_message
from agentrl.types import Action

_COMPARED, _LIKE = 1000, 0.5
"""`_COMPARED`: number of characters of two texts that are compared. `_LIKE`: the minimum similarity, from 0 to 1, of
similar texts."""
_CONTINUED = digest_of("continued")
"""A digest for the end of a prompt with a continued last entry, chained after the digest of the entries."""
_CALLS_AS_TEXT = "Calling tools:"
"""smolagents' text before the calls in an echo of a reply as text."""


@dataclass(frozen=True, slots=True)
class TreePosition:
    """The position of a request in the tree."""

    parent: Node | None
    entries: tuple[Entry, ...]
    """The new entries after the parent."""
    digest: Digest
    """The digest of the new entries."""
    known_replies: Mapping[int, Node]
    tells: Sequence[tuple[Node, Entry]]
    """All replies echoed by the new entries, even in different words, in order, each with the echo."""
    first_echoes: Sequence[tuple[Node, Entry]]
    """The replies that this request echoes for the first time, each with its echo."""
    grown_from: Prompt | None
    prompt: Prompt | None
    """The existing prompt with the same entries, from an earlier request. None for a new prompt."""
    rest: Entry | None = None
    """The missing rest of the parent, if the client echoes only the parent's beginning."""
    continued: bool = False
    before_last: Digest = START


@dataclass(slots=True)
class _Cursor:
    """A path through the tree that matches the entries read so far. `node` is the last reply on the path."""

    node: Node | None
    start: int
    digest: Digest = START
    before_last: Digest = START
    """The digest of the entries after `node`, without the last entry."""
    grown_from: Prompt | None = None
    entry: Entry | None = None
    """The client's echo of `node`."""
    before: _Cursor | None = None
    """The cursor before the step to `node`."""
    replaced: dict[int, Prompt] = field(default_factory=dict)
    """Index of an assistant entry from outside of the session -> the prompt with the replaced replies."""

    @property
    def first_echoes(self) -> list[tuple[Node, Entry]]:
        """The replies on this path that are echoed for the first time, each with its echo."""
        echoes, cursor = list[tuple[Node, Entry]](), self
        while cursor.node is not None and cursor.entry is not None and not cursor.node.echoed:
            echoes.append((cursor.node, cursor.entry))
            assert cursor.before is not None
            cursor = cursor.before
        return echoes[::-1]


@dataclass(frozen=True, slots=True)
class _RequestEntries:
    """The entries of a request, with the replies that their ids name."""

    entries: list[Entry]
    named: list[Node | None]
    """For each entry, the reply whose ids the entry holds; None without such a reply."""
    reworded: dict[int, Node]
    """Index of an entry that changes the named reply, so that the client's own words count -> the reply."""


class Tree:
    """All replies of a session."""

    def __init__(self, *, as_sent: bool = False, tag: str | None = None) -> None:
        self.tag = tag or f"g{secrets.token_hex(4)}"
        """A random text in all ids of the session, by which ids are recognized even in rewritten text."""
        self.prompts: list[Prompt] = []
        self.nodes: list[Node] = []
        self._as_sent = as_sent
        self._roots: dict[tuple[Digest, Digest], Prompt] = {}
        self._alike: dict[Digest, list[Node]] = {}
        """Digest of a normal form -> the replies with this form."""
        self._joins: dict[tuple[int, Digest, Digest], list[Node]] = {}
        """Key of a message's beginning -> the replies that continue the message."""
        self._numbers = 0

    def _name(self, entry: Entry) -> Node | None:
        """The reply with the ids of an assistant entry."""
        nodes = (self.named(text) for text in (*entry.receipts, *(call.id for call in entry.calls)))
        return next(filter(None, nodes), None) or (None if entry.receipts else self._written_out(entry))

    def _written_out(self, entry: Entry) -> Node | None:
        """The reply whose calls a client echoes as text after the reply's own words, as smolagents does.

        A text that equals a reply is not searched for calls, even if it quotes ids.
        """
        words, form, calls = entry.text.partition(_CALLS_AS_TEXT)
        node = self.named(calls) if form and entry_digest(entry) not in self._alike else None
        if node is None or node.sent is None or not node.sent.calls:
            return None
        return node if not words.strip() or thoughtless(words) == thoughtless(node.sent.text) else None

    def named(self, text: str) -> Node | None:
        """The complete reply whose id occurs in a text."""
        digits = text.partition(f"{self.tag}n")[2][:5]
        number = int(digits) if len(digits) == 5 and digits.isascii() and digits.isdigit() else len(self.nodes)
        node = self.nodes[number] if number < len(self.nodes) else None
        return node if node is not None and node.sent is not None else None

    def _read(self, entries: Sequence[Entry]) -> _RequestEntries:
        """Read the entries and the replies that their ids name. A reply that is echoed in several messages becomes a
        single entry."""
        read = _RequestEntries([], [], {})
        for entry in entries:
            node = self._name(entry) if entry.role == "assistant" else None
            if node is not None and read.named[-1:] == [node]:
                read.entries[-1] = _whole(read.entries[-1], entry)
            else:
                read.entries.append(entry)
                read.named.append(node)
        for index, (entry, node) in enumerate(zip(read.entries, read.named, strict=True)):
            if node is not None and self._is_reworded(node, entry, last=index == len(read.entries) - 1):
                read.reworded[index], read.named[index] = node, None
        return read

    def _is_reworded(self, node: Node, echo: Entry, *, last: bool) -> bool:
        """Whether the client changed a reply, so that the entry's own words count. The last entry may echo only a part
        of a reply."""
        if self._as_sent:
            return node.telling(echo) == "meaning"
        return node.edited(echo) and not last

    def find(self, entries: Sequence[Entry], tools: Digest, *, continued: bool = False) -> TreePosition:
        """The position of a request's entries: after the deepest reply that they echo, or after the latest of equal
        replies.

        `continued`: the replies will continue the last entry.
        """
        cursors, read = [_Cursor(None, 0)], self._read(entries)
        for i, (entry, name) in enumerate(zip(read.entries, read.named, strict=True)):
            digest = START if name else entry_digest(entry)
            advanced = self._after(cursors, entry, name, digest, tools, i) if entry.role == "assistant" else None
            if advanced:
                cursors = advanced
                continue
            digest = digest_of("reply", name.id) if name else digest
            for cursor in cursors:
                here = self._prompt(cursor, tools)
                if here is not None and entry.role == "assistant":
                    cursor.replaced[i] = here
                cursor.grown_from = here or cursor.grown_from
                cursor.before_last, cursor.digest = cursor.digest, chained(cursor.digest, digest)
        best = max(cursors, key=lambda cursor: (cursor.node is not None and cursor.node.delivered, _index(cursor)))
        if continued:
            best.digest = chained(best.digest, _CONTINUED)
        return replace(self._place(best, read, tools), continued=continued, before_last=best.before_last)

    def attach(self, place: TreePosition, head: Head) -> Prompt:
        """The prompt at a position: an existing prompt, or a new prompt with `head`, which is from the request."""
        if place.prompt is not None:
            return place.prompt
        above, grown_from, tools, branch = place.parent, place.grown_from, head.tools_digest, head.branch
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
            place.known_replies,
            head,
            number,
            grown_from,
            tells,
            tools,
            branch,
            place.continued,
            place.before_last,
        )
        self.keep(prompt)
        return prompt

    def keep(self, prompt: Prompt) -> None:
        """Register a prompt in the tree."""
        self.prompts.append(prompt)
        if prompt.parent is None:
            self._roots[prompt.head.digest, prompt.digest] = prompt
        else:
            prompt.parent.prompts[prompt.digest] = prompt
        for node in prompt.tells:
            node.reused = True

    def add(self, prompt: Prompt, branch: str) -> Node:
        """Add a new reply to a prompt, before sampling."""
        index = len(self.nodes)
        node = Node(index, prompt, f"{self.tag}n{index:05}", branch)
        self.nodes.append(node)
        prompt.replies.append(node)
        return node

    def commit(self, node: Node, action: Action, reply: Reply, call_ids: Mapping[str, str]) -> None:
        """Complete a reply. From now on, requests can match the reply."""
        node.turn.drop_prompt()
        self.settle(node, action, reply, call_ids)

    def settle(self, node: Node, action: Action, reply: Reply, call_ids: Mapping[str, str]) -> None:
        """Store a reply, and register its normal forms."""
        calls = tuple(Call(call.id, call.name, call.arguments) for call in reply.calls)
        node.action, node.reply, node.call_ids = replace(action, tokens=()), reply, call_ids
        node.sent = Entry("assistant", reply.content, reply.reasoning, calls, (reply.id, reply.receipt))
        content = spaces_before(node.prompt, action) + action.content
        node.messages = (assistant_message(replace(action, content=content)),)
        if reply.stop_sequence is not None:
            node.whole = replace(node.sent, text=node.sent.text.removesuffix(reply.stop_sequence) + reply.stop_sequence)
        if (beginning := beginning_of(node.prompt)) is not None:
            node.joined = replace(node.sent, text=beginning.text + node.sent.text)
            self._joins.setdefault(start_of(node), []).append(node)
        for form in filter(None, (node.sent, node.whole)):
            if form.text.strip() or calls:
                self._alike.setdefault(entry_digest(form), []).append(node)

    def heads(self) -> Iterator[Head]:
        """The different heads of the roots, latest first."""
        return iter({prompt.head.digest: prompt.head for prompt in reversed(self._roots.values())}.values())

    def _after(
        self, cursors: Sequence[_Cursor], entry: Entry, name: Node | None, digest: Digest, tools: Digest, index: int
    ) -> list[_Cursor]:
        """The cursors, moved to the replies that an assistant entry echoes. Empty without such a reply."""
        return [
            _Cursor(node, index + 1, entry=entry, before=cursor)
            for cursor in cursors
            for node in self._candidates(cursor, tools)
            if (node is name if name else _is(node, entry, digest))
        ]

    def _candidates(self, cursor: _Cursor, tools: Digest) -> Iterator[Node]:
        """The replies that may follow at a cursor: to its prompt, to the same prompt with a continued last entry, or in
        a joined message."""
        yield from self._replies(cursor, tools)
        yield from self._replies(replace(cursor, digest=chained(cursor.digest, _CONTINUED)), tools)
        above = cursor.node
        key = (-1, tools, cursor.digest) if above is None else (above.index, above.prompt.head.digest, cursor.digest)
        yield from self._joins.get(key, ())

    def _prompt(self, cursor: _Cursor, tools: Digest) -> Prompt | None:
        if cursor.node is None:
            return self._roots.get((tools, cursor.digest))
        return cursor.node.prompts.get(cursor.digest)

    def _replies(self, cursor: _Cursor, tools: Digest) -> Sequence[Node]:
        prompt = self._prompt(cursor, tools)
        return () if prompt is None else prompt.replies

    def _place(self, cursor: _Cursor, read: _RequestEntries, tools: Digest) -> TreePosition:
        known_replies, tells = dict[int, Node](), list[tuple[Node, Entry]]()
        start, first_echoes = cursor.start, cursor.first_echoes
        for i, entry in enumerate(read.entries[start:], start):
            if entry.role != "assistant":
                continue
            reply = None if i in read.reworded else self._echoed_here(i, cursor, read, tools)
            if reply is None:
                reply = _reworded_here(i, cursor, read)
            else:
                if reply.joined is None:  # else its tokens may be a part of the message
                    known_replies[i - start] = reply
                if read.named[i] is not None and not reply.echoed:
                    first_echoes.append((reply, entry))
            if reply is not None:
                tells.append((reply, entry))
        return TreePosition(
            cursor.node,
            tuple(read.entries[start:]),
            cursor.digest,
            known_replies,
            tells,
            first_echoes,
            cursor.grown_from,
            self._prompt(cursor, tools),
            _rest(cursor, read),
        )

    def _echoed_here(self, index: int, cursor: _Cursor, read: _RequestEntries, tools: Digest) -> Node | None:
        """The reply that a new assistant entry echoes, recognized by ids or by the same words.

        Among replies with the same words, replies of conversations with the same start are preferred, then the latest
        reply.
        """
        if read.named[index] is not None:
            return read.named[index]
        top, start = None if cursor.node is None else cursor.node.prompt.top, _start(read.entries)

        def key(node: Node) -> tuple[bool, int, bool, int]:
            root = node.prompt.top
            shared = sum(text == other for text, other in zip(_start(root.entries), start, strict=True))
            return root is top, shared, root.head.digest == tools, node.index

        return max(self._alike.get(entry_digest(read.entries[index]), ()), key=key, default=None)


def _reworded_here(index: int, cursor: _Cursor, read: _RequestEntries) -> Node | None:
    """The reply that a new assistant entry echoes in other words."""
    reply = read.reworded.get(index)
    if reply is None and index in cursor.replaced and index < len(read.entries) - 1:
        return _nearest(cursor.replaced[index].replies, read.entries[index])
    return reply


def _rest(cursor: _Cursor, read: _RequestEntries) -> Entry | None:
    """The missing rest of the last reply, if the request ends with an echo of the reply's beginning."""
    node = cursor.node
    if node is None or node.sent is None or cursor.entry is None or cursor.start != len(read.entries):
        return None
    return missing(node.sent, cursor.entry) if read.named[-1] is node else None


def _start(entries: Sequence[Entry]) -> tuple[str, str]:
    """The start of a conversation: the first text, and the first text of a user."""
    return entries[0].text, next((entry.text for entry in entries if entry.role == "user"), "")


def _is(node: Node, entry: Entry, digest: Digest) -> bool:
    """Whether an entry without ids echoes this reply. Thoughts are compared if the entry has any."""
    if node.sent is None:
        return False
    if node.joined is not None and words(node.joined) == words(entry):
        return True
    if digest not in [entry_digest(form) for form in (node.sent, node.whole) if form]:
        return False
    return not entry.reasoning or entry.reasoning.strip() == (node.sent.reasoning or "").strip()


def _whole(before: Entry, entry: Entry) -> Entry:
    """Two entries that echo the same reply, joined."""
    text, reasoning = "\n".join(filter(None, [before.text, entry.text])), before.reasoning or entry.reasoning
    return replace(before, text=text, reasoning=reasoning, calls=(*before.calls, *entry.calls))


def _index(cursor: _Cursor) -> int:
    return -1 if cursor.node is None else cursor.node.index


def _nearest(replies: Sequence[Node], entry: Entry) -> Node | None:
    """The reply that an entry in the same position rewords: the most similar reply, or the latest if no reply is
    similar."""

    def likeness(node: Node) -> float:
        assert node.sent is not None
        ratio = SequenceMatcher(None, node.sent.text[:_COMPARED], entry.text[:_COMPARED], autojunk=False).ratio()
        return ratio if ratio > _LIKE else 0.0

    sent = [node for node in replies if node.sent is not None]
    if len(sent) < 2:
        return next(iter(sent), None)
    return max(sent, key=lambda node: (likeness(node), node.index))
