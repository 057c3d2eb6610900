"""Sessions of a client that does anything: grows, forks, drops, retries, tells in its own way, goes away, is paused."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl import Limits
from agentrl.chat.options import SessionOptions
from agentrl.chat.request import Entry
from agentrl.models import load_tokenizer
from agentrl.render import load_renderer
from agentrl.testing import call
from agentrl.trajectory.trajectory import total_ledger
from tests.episode.thinking import TEMPLATE
from tests.gateway.client import SYSTEM, Talk, results, told

WORDS = ["Paris", "Rome", "a  b", "Let me see.", "42", "<think>", "ok"]
MOVES = [
    "grow",
    "grow",
    "grow",
    "drop",
    "fork",
    "retry",
    "twice",
    "gone",
    "root",
    "compact",
    "pause",
    "several",
    "parallel",
    "cut",
    "rest",
]


@pytest.fixture(scope="module")
def thinker():
    return load_renderer(load_tokenizer("tiny"), chat_template=TEMPLATE)


class Client:
    """It keeps lines of history, and does one move after another."""

    def __init__(self, renderer, seed: int, options: SessionOptions) -> None:
        self.random = random.Random(seed)
        self.engine_random = random.Random(seed + 1)
        self.talk = Talk(renderer, self.sampled, options=options, limits=Limits(turns=1000))
        self.lines: list[list[Entry]] = [[SYSTEM, Entry("user", "Begin.")]]
        self.bodies = 0
        self.whole = 0
        """Replies that the client asked for, and that are not those of a retry."""

    def sampled(self, ids):
        pick = self.engine_random
        message = (
            call("find", what=pick.choice(WORDS), deep=pick.random()) if pick.random() < 0.6 else {"role": "assistant"}
        )
        message = {**message, "content": pick.choice(["", *WORDS]) if "tool_calls" in message else pick.choice(WORDS)}
        if pick.random() < 0.3:
            message["reasoning_content"] = pick.choice(WORDS[:-2])
        if pick.random() < 0.1:
            return '<tool_call>\n{"name": "find", "arg\n</tool_call>'
        return message

    def told(self, reply) -> Entry:
        """A reply in one of the ways in which clients tell them. The ids of calls come back, or the text does."""
        entry, pick = told(reply), self.random
        calls = tuple(
            replace(c, arguments={"filled": False, **c.arguments}) if pick.random() < 0.3 else c for c in entry.calls
        )
        entry = replace(entry, calls=calls)
        if pick.random() < 0.3:
            entry = replace(entry, reasoning=None)
        if pick.random() < 0.3:
            entry = replace(entry, receipts=())
        if pick.random() < 0.3:
            entry = replace(entry, text=f" {entry.text}\n")
        return entry

    def after(self, reply) -> list[Entry]:
        """What the client says behind a reply."""
        answers = results(reply, *(self.random.choice(WORDS) * self.random.randint(1, 3) for _ in reply.calls))
        return [
            *answers,
            *([] if answers and self.random.random() < 0.7 else [Entry("user", self.random.choice(WORDS))]),
        ]

    def body(self) -> str:
        self.bodies += 1
        return str(self.bodies)

    async def says(self, line, **given):
        given = {"digest": self.body(), **given}
        exchange = self.talk.ask(*line, **given)
        replies = await self.talk.replies(exchange)
        exchange.delivered()
        return replies

    async def move(self, name: str) -> None:
        await getattr(self, name)(self.random.choice(self.lines))

    async def grow(self, line, **given) -> None:
        (reply,) = await self.says(line, **given)
        self.whole += 1
        line += [self.told(reply), *self.after(reply)]

    async def cut(self, line) -> None:
        await self.grow(line, max_tokens=3)

    async def drop(self, line) -> None:
        await self.says(line)
        self.whole += 1
        line += [Entry("user", "That was no call.")] * self.random.randint(0, 1)

    async def fork(self, line) -> None:
        self.lines.append([*line])
        await self.grow(self.lines[-1])

    async def several(self, line) -> None:
        reply = self.random.choice(await self.says(line, n=3))
        self.whole += 3
        line += [self.told(reply), *self.after(reply)]

    async def retry(self, line) -> None:
        digest = self.body()
        (first,), (again,) = await self.says(line, digest=digest), await self.says(line, digest=digest, retried=True)
        self.whole += 1
        assert first == again

    async def parallel(self, line) -> None:
        """Several lines at once, and a pause in the middle."""
        lines = list({id(one): one for one in (line, *self.lines[-2:])}.values())
        self.talk.engine.gate.clear()
        asked = [self.talk.ask(*one, digest=self.body()) for one in lines]
        await asked[0].accepted()
        self.talk.session.hold()
        self.talk.engine.gate.set()
        self.talk.play()
        for one, exchange in zip(lines, asked, strict=True):
            (reply,) = await self.talk.replies(exchange)
            exchange.delivered()
            self.whole += 1
            one += [self.told(reply), *self.after(reply)]

    async def twice(self, line) -> None:
        digest = self.body()
        asked = [self.talk.ask(*line, digest=digest, retried=retried) for retried in (False, True)]
        (first,), (again,) = await asyncio.gather(*(self.talk.replies(each) for each in asked))
        self.whole += 1
        assert first == again
        asked[0].lost()
        asked[1].delivered()
        line += [self.told(first), *self.after(first)]

    async def gone(self, line) -> None:
        exchange = self.talk.ask(*line, digest=self.body())
        await exchange.accepted()
        exchange.lost()
        await self.talk.replies(exchange)
        if self.random.random() < 0.5:
            await self.grow(line)  # which gets the same reply
        else:
            self.whole += 1
            line += [Entry("user", "Never mind.")]

    async def root(self, _) -> None:
        other = [Entry("system", f"Another {self.random.random()}"), Entry("user", "Begin.")]
        await self.says(other, tools=())
        self.whole += 1

    async def compact(self, line) -> None:
        self.lines.append([SYSTEM, Entry("user", f"Summary {self.random.random()}"), *line[-4:]])

    async def pause(self, line) -> None:
        self.talk.engine.gate.clear()
        exchange = self.talk.ask(*line, digest=self.body())
        await exchange.accepted()
        self.talk.session.hold()
        self.talk.engine.aborts(self.random.randint(0, 3))
        self.talk.engine.gate.set()
        await self.talk.session.quiet()
        self.talk.play()
        (reply,) = await self.talk.replies(exchange)
        self.talk.engine.unaborted()
        self.whole += 1
        exchange.delivered()
        line += [self.told(reply), *self.after(reply)]

    async def rest(self, line) -> None:
        """The connection breaks behind the thought; the client tells that and asks for the rest."""
        exchange = self.talk.ask(*line, digest=self.body())
        (reply,) = await self.talk.replies(exchange)
        self.whole += 1
        exchange.lost()
        (rest,) = await self.says([*line, Entry("assistant", "", reply.reasoning, receipts=(reply.receipt,))])
        if rest.id != reply.id:  # there was nothing but the thought
            self.whole += 1
            line.append(self.told(reply))
        line += [self.told(rest) if rest.id != reply.id else self.told(reply), *self.after(rest)]


@pytest.mark.thorough
@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 1 << 30),
    moves=st.lists(st.sampled_from(MOVES), min_size=1, max_size=12),
    masks=st.sampled_from(["train", "mask"]),
)
def test_whatever_a_client_does_each_token_is_counted_once(thinker, seed, moves, masks):
    async def play():
        client = Client(thinker, seed, SessionOptions(dropped=masks, side=masks))
        for move in moves:
            await client.move(move)
        trajectory = client.talk.end()
        ledger = total_ledger(trajectory.segments)
        assert ledger.sampled == sum(len(got) for _, got in client.talk.engine.answers)
        assert ledger.sampled == ledger.trained + sum(ledger.masked.values())
        assert set(ledger.masked) <= {"undelivered", *(("dropped", "side") if masks == "mask" else ())}
        if trajectory.turns:
            assert len(trajectory.turns) == client.whole, "nothing is sampled twice, nothing is lost"
        assert client.talk.session.error is None

    asyncio.run(play())


@pytest.mark.thorough
@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 1 << 30),
    moves=st.lists(st.sampled_from(["grow", "cut", "twice", "pause", "rest"]), min_size=3, max_size=12),
)
def test_a_client_that_keeps_its_history_plays_one_segment_however_it_tells_it(thinker, seed, moves):
    async def play():
        client = Client(thinker, seed, SessionOptions())
        for move in moves:
            await client.move(move)
        trajectory = client.talk.end()
        assert len(trajectory.segments) == 1
        assert trajectory.ledger.masked == {}

    asyncio.run(play())
