"""Sessions against a model of them in a few lines, written from the contract alone.

The model knows no digests and no tokens. A reply is at home behind the words that were said before it, each earlier
reply as itself, however its client tells it. A request belongs behind the longest beginning of it that is the home of
a reply, and that reply. Each reply that nothing follows is the end of a segment, whose words are those of its home.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, TypeAlias

import pytest

from agentrl.chat.request import Entry, Reply
from agentrl.testing import call
from tests.gateway.client import FIND, Talk, told

WORD = re.compile(r"zq\d+")
Item: TypeAlias = "str | int"
"""What somebody said: its word; or a reply of the session: its number."""
Home: TypeAlias = "tuple[Item, ...]"


@dataclass(frozen=True)
class Like:
    """A reply that is told by its words alone."""

    reply: int


@dataclass
class Model:
    """Replies by number: their homes, and their words."""

    homes: list[Home] = field(default_factory=list)
    words: list[tuple[str, ...]] = field(default_factory=list)
    unread: set[int] = field(default_factory=set)

    def belongs(self, head: str, told: Sequence[Item | Like]) -> Home:
        """The home of a reply to what is told. Of twins that words cannot tell apart, the latest one read is meant."""
        homes: list[Home] = [(head,)]
        for item in told:
            if isinstance(item, Like):
                alike = [i for i, words in enumerate(self.words) if words == self.words[item.reply]]
                fitting = [(*home, i) for home in homes for i in alike if self.homes[i] == home]
                homes = fitting or [(*home, item.reply) for home in homes]
            else:
                fitting = [home for home in homes if isinstance(item, int) and self.homes[item] == home]
                homes = [(*home, item) for home in fitting or homes]
        return max(homes, key=self._latest)

    def _latest(self, home: Home) -> tuple[bool, int]:
        parent = self.parent(home)
        return (False, -1) if parent is None else (parent not in self.unread, parent)

    def sampled(self, home: Home, words: tuple[str, ...]) -> int:
        self.homes.append(home)
        self.words.append(words)
        return len(self.homes) - 1

    def parent(self, home: Home) -> int | None:
        """The last reply in a home that is at home there."""
        for end in range(len(home) - 1, 0, -1):
            item = home[end]
            if isinstance(item, int) and self.homes[item] == home[:end]:
                return item
        return None

    def leaves(self) -> Iterator[int]:
        parents = {self.parent(home) for home in self.homes}
        return (reply for reply in range(len(self.homes)) if reply not in parents)

    def said(self, reply: int) -> list[str]:
        """The words of a segment that ends with this reply."""
        items = (*self.homes[reply][1:], reply)
        return [word for item in items for word in (self.words[item] if isinstance(item, int) else (item,)) if word]


@dataclass
class Told:
    """A line of a client's history: the entries, and what they are to the model."""

    head: str
    entries: list[Entry]
    items: list[Item | Like]

    def copy(self) -> Told:
        return Told(self.head, [*self.entries], [*self.items])


class Client:
    def __init__(self, renderer: Any, seed: int) -> None:
        self.pick = random.Random(seed)
        self.numbers, self.bodies = count(1), count(1)
        self.model = Model()
        self.last: Any = None
        self.talk = Talk(renderer, lambda ids: self.speaks())
        self.lines = [self.root()]

    def word(self) -> str:
        return f"zq{next(self.numbers)}"

    def speaks(self) -> Any:
        if self.last is not None and self.pick.random() < 0.1:
            return self.last  # the same again
        self.last = self.something()
        return self.last

    def something(self) -> Any:
        text = self.pick.choice([self.word(), self.word(), ""])
        if text and self.pick.random() < 0.4:
            return text
        return {**call("find", what=self.word()), "content": text}

    def entry(self, role: str, **more: Any) -> tuple[Entry, str]:
        word = self.word()
        return Entry(role, word, **more), word

    def root(self) -> Told:
        line = Told(self.pick.choice(["tools", "tools", "none"]), [], [])
        for role in self.pick.choice([["user"], ["system", "user"], ["developer", "user", "system"], ["user", "user"]]):
            self.adds(line, *self.entry(role))
        return line

    @staticmethod
    def adds(line: Told, entry: Entry, item: Item | Like) -> None:
        line.entries.append(entry)
        line.items.append(item)

    async def asks(self, line: Told, *, n: int = 1, body: str = "", **given: Any) -> list[tuple[Reply, int]]:
        """The replies to a line, each with its number in the model."""
        tools = (FIND,) if line.head == "tools" else ()
        exchange = self.talk.ask(*line.entries, n=n, tools=tools, digest=body or f"{next(self.bodies)}", **given)
        replies = await self.talk.replies(exchange)
        exchange.delivered()
        home = self.model.belongs(line.head, line.items)
        return [(reply, self.model.sampled(home, words_of(reply))) for reply in replies]

    def hears(self, line: Told, reply: Reply, number: int) -> None:
        """The client adds a reply to its history in one of its ways, and says something behind it."""
        entry, named = self.tells(reply)
        line.entries.append(entry)
        line.items.append(number if named else Like(number))
        for asked in reply.calls:
            self.adds(line, *self.entry("tool", call_id=asked.id))
        for role in self.pick.choice([["user"], ["system"], ["user", "system"], [] if reply.calls else ["user"]]):
            self.adds(line, *self.entry(role))

    def tells(self, reply: Reply) -> tuple[Entry, bool]:
        """A reply in one of the ways in which clients tell them, and whether an id names it."""
        entry, chance = told(reply), self.pick.random
        calls = entry.calls
        if chance() < 0.4:
            entry = replace(entry, receipts=())
            if chance() < 0.4:
                calls = tuple(replace(asked, id="") for asked in calls)
        named = bool(entry.receipts or any(asked.id for asked in calls))
        if named and chance() < 0.3:
            calls = tuple(replace(asked, arguments={"also": 1, **asked.arguments}) for asked in calls)
        elif named and chance() < 0.2:
            entry, calls = replace(entry, text="Something else."), tuple(replace(c, arguments={}) for c in calls)
        if chance() < 0.3:
            entry = replace(entry, text=f"{entry.text} \n")
        return replace(entry, calls=calls), named

    # What clients do

    async def grows(self, line: Told) -> None:
        ((reply, number),) = await self.asks(line)
        self.hears(line, reply, number)

    async def forks(self, line: Told) -> None:
        self.lines.append(line.copy())
        await self.grows(self.lines[-1])

    async def drops(self, line: Told) -> None:
        await self.asks(line)
        if self.pick.random() < 0.5:
            self.adds(line, *self.entry("user"))
        await self.grows(line)

    async def wants_several(self, line: Told) -> None:
        replies = await self.asks(line, n=3)
        self.hears(line, *self.pick.choice(replies))

    async def asks_again(self, line: Told) -> None:
        """The same body: marked as a retry it is the same answer; unmarked, behind a delivered one, another."""
        body = f"{next(self.bodies)}"
        ((first, number),) = await self.asks(line, body=body)
        tools = (FIND,) if line.head == "tools" else ()
        exchange = self.talk.ask(*line.entries, tools=tools, digest=body, retried=True)
        (again,) = await self.talk.replies(exchange)
        exchange.delivered()
        assert again == first
        ((other, another),) = await self.asks(line, body=body)
        assert other.id != first.id
        self.hears(line, *self.pick.choice([(first, number), (other, another)]))

    async def goes_away(self, line: Told) -> None:
        """Nobody reads the answer: it stays, and is not trained, unless the same body is asked again."""
        body, tools = f"{next(self.bodies)}", (FIND,) if line.head == "tools" else ()
        exchange = self.talk.ask(*line.entries, tools=tools, digest=body)
        await exchange.accepted()
        exchange.lost()
        (reply,) = await self.talk.replies(exchange)
        number = self.model.sampled(self.model.belongs(line.head, line.items), words_of(reply))
        if self.pick.random() < 0.5:
            second = self.talk.ask(*line.entries, tools=tools, digest=body)
            assert await self.talk.replies(second) == [reply]
            second.delivered()
            self.hears(line, reply, number)
        else:
            self.model.unread.add(number)
            self.adds(line, *self.entry("user"))

    async def begins_another(self, line: Told) -> None:
        self.lines.append(self.root())
        await self.grows(self.lines[-1])

    async def edits_the_past(self, line: Told) -> None:
        said = [i for i, entry in enumerate(line.entries) if entry.role == "user"]
        line = line.copy()
        self.lines.append(line)
        at = self.pick.choice(said)
        line.entries[at], line.items[at] = self.entry("user", joined=line.entries[at].joined)
        await self.grows(line)

    async def compacts(self, line: Told) -> None:
        """A summary is asked for behind the history. Work goes on behind that, the last exchange as it was."""
        summing = line.copy()
        self.adds(summing, *self.entry("user", joined=summing.entries[-1].role == "user"))
        await self.asks(summing)
        turns = [i for i, item in enumerate(line.items) if not isinstance(item, str)]
        kept = turns[-1] if turns and self.pick.random() < 0.7 else len(line.items)
        made = self.root()
        made.head = line.head
        if self.pick.random() < 0.5:
            self.adds(made, *self.entry("assistant"))
            self.adds(made, *self.entry("user"))
        made.entries += line.entries[kept:]
        made.items += line.items[kept:]
        self.lines[self.lines.index(line)] = made
        await self.grows(made)

    async def asks_twice_at_once(self, line: Told) -> None:
        """Two different lines beside each other."""
        other = self.root()
        self.lines.append(other)
        exchanges = [
            self.talk.ask(*one.entries, tools=(FIND,) if one.head == "tools" else (), digest=f"{next(self.bodies)}")
            for one in (line, other)
        ]
        for one, exchange in zip((line, other), exchanges, strict=True):
            (reply,) = await self.talk.replies(exchange)
            exchange.delivered()
            number = self.model.sampled(self.model.belongs(one.head, one.items), words_of(reply))
            self.hears(one, reply, number)


MOVES = ["grows"] * 5 + [
    *("forks", "drops", "wants_several", "asks_again", "goes_away"),
    *("begins_another", "edits_the_past", "compacts", "asks_twice_at_once"),
]


def words_of(reply: Reply) -> tuple[str, ...]:
    return tuple(WORD.findall(" ".join([reply.content, *(asked.arguments["what"] for asked in reply.calls)])))


@pytest.mark.parametrize("seed", range(25))
async def test_segments_are_those_of_the_model(renderer, seed: int) -> None:
    client = Client(renderer, seed)
    for _ in range(client.pick.randint(4, 14)):
        await getattr(client, client.pick.choice(MOVES))(client.pick.choice(client.lines))
    trajectory, model = client.talk.end(), client.model
    segments = [WORD.findall(renderer.decode(segment.ids)) for segment in trajectory.segments]
    wanted = [model.said(leaf) for leaf in model.leaves()]
    assert Counter(map(tuple, segments)) == Counter(map(tuple, wanted))
    trained = [word for segment in trajectory.segments for word in WORD.findall(trained_text(renderer, segment))]
    read = [word for number, words in enumerate(model.words) if number not in model.unread for word in words]
    assert sorted(trained) == sorted(read)
    assert trajectory.ledger.sampled == trajectory.ledger.trained + sum(trajectory.ledger.masked.values())


def trained_text(renderer: Any, segment: Any) -> str:
    pairs = zip(segment.response, segment.loss_mask, strict=True)
    return renderer.decode([token for token, trained in pairs if trained])
