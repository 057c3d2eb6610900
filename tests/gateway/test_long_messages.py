"""One long message holds up no other session: it is refused by its length, or rendered in a thread."""

from __future__ import annotations

import asyncio
import os
import signal
import threading

import pytest

from agentrl import Env, EpisodeOptions, Limits, Raw, StepResult, StopReason, Task, run_episode, tool
from agentrl.chat.request import ChatRequest, Entry, RefusedError
from agentrl.engine import ScriptedEngine
from agentrl.render import long_text
from agentrl.render.template import Template
from agentrl.testing import call
from tests.gateway.client import ASK, FIND, SYSTEM, Talk, results, told

LINE = "It was the best of times, it was the worst of times. "
LARGE = LINE * 2_000
"""100 kB: some 30,000 tokens of a usual model."""


@pytest.fixture
def encoded(monkeypatch):
    """What was encoded: characters, and whether that was on the event loop."""
    seen = list[tuple[int, bool]]()
    encode = Template._encode

    def watched(self, text, after):
        seen.append((len(text), threading.current_thread() is threading.main_thread()))
        return encode(self, text, after)

    monkeypatch.setattr(Template, "_encode", watched)
    return seen


def on_loop(encoded):
    return max((length for length, looping in encoded if looping), default=0)


def request(*entries):
    return ChatRequest(wire="chat", entries=entries, tools=(FIND,))


async def test_a_message_that_cannot_fit_is_refused_by_its_length(renderer, encoded):
    talk = Talk(renderer, ["Hi."], limits=Limits(context=1000))
    huge = Entry("user", LINE * 20_000)  # a megabyte
    for ask in (talk.ask(SYSTEM, huge).accepted, lambda: talk.session.count(request(SYSTEM, huge))):
        with pytest.raises(RefusedError, match=r"^prompt is too long: about \d+ tokens > 1000 maximum$") as refused:
            await ask()
        assert refused.value.kind == "context_full"
    assert max((length for length, _ in encoded), default=0) < 1000, "it was not encoded"


async def test_a_message_that_surely_does_not_fit_costs_no_more_than_the_context(renderer, encoded):
    talk = Talk(renderer, ["Hi."], limits=Limits(context=20_000))
    with pytest.raises(RefusedError, match=r"prompt is too long: about \d{6,} tokens > 20000 maximum"):
        await talk.ask(SYSTEM, Entry("user", LINE * 20_000)).accepted()
    assert sum(length for length, _ in encoded) < 300_000
    assert on_loop(encoded) < 1000


async def test_a_long_message_that_fits_is_encoded_in_a_thread(renderer, encoded):
    talk = Talk(renderer, [call("find", what="x"), "Read."], context_length=200_000)
    count = await talk.session.count(request(SYSTEM, Entry("user", LARGE)))
    one = await talk.says(SYSTEM, Entry("user", LARGE))
    assert one.usage.prompt == count
    two = await talk.says(SYSTEM, Entry("user", LARGE), told(one), *results(one, LARGE))
    assert two.content == "Read."
    assert max(length for length, _ in encoded) > 100_000
    assert on_loop(encoded) < 1000
    assert len(talk.end().segments) == 1


async def test_a_refused_message_ends_no_session(renderer):
    talk = Talk(renderer, ["Hi."], limits=Limits(context=1000))
    with pytest.raises(RefusedError, match="too long"):
        await talk.ask(SYSTEM, Entry("user", LINE * 20_000)).accepted()
    assert (await talk.says(SYSTEM, ASK)).content == "Hi."


class Reader(Env):
    """A tool that reads a long page."""

    def __init__(self, page=LARGE):
        self.page = page

    def reset(self, task):
        return task.prompt

    @tool
    def read(self) -> str:
        """Read it."""
        return self.page

    def score(self, trajectory):
        return 1.0


class Writer(Reader):
    """The same page, as text that continues the turn."""

    def step(self, action):
        return StepResult(Raw(f"{self.page}\n", end="\n"), done=not action.calls)


async def played(renderer, env, prompt="Go.", **limits):
    engine = ScriptedEngine([call("read"), "Done."], renderer, context_length=200_000)
    options = EpisodeOptions(limits=Limits(**limits))
    return await run_episode(env, Task(prompt=prompt), engine=engine, renderer=renderer, options=options)


@pytest.mark.parametrize("kind", [Reader, Writer])
async def test_an_observation_is_cut_in_a_thread_to_the_same_tokens(renderer, encoded, monkeypatch, kind):
    aside = await played(renderer, kind(), observation_tokens=500)
    assert on_loop(encoded) < 3000
    assert (aside.failure, aside.info["observation_tokens_cut"] > 10_000) == (None, True)
    monkeypatch.setattr(long_text, "LONG", 1 << 40)
    plain = await played(renderer, kind(), observation_tokens=500)
    assert (aside.tokens, aside.loss_mask, aside.info) == (plain.tokens, plain.loss_mask, plain.info)


async def test_a_long_first_observation_is_encoded_in_a_thread(renderer, encoded):
    t = await played(renderer, Reader("short"), prompt=LARGE)
    assert (t.failure, t.stop, on_loop(encoded) < 1000) == (None, StopReason.DONE, True)


async def test_an_observation_that_cannot_fit_ends_the_episode_unread(renderer, encoded):
    t = await played(renderer, Reader(LARGE * 10), context=2000)
    assert (t.failure, t.stop) == (None, StopReason.CONTEXT_FULL)
    assert max(length for length, _ in encoded) < 3000


def test_a_forked_process_has_threads_of_its_own():
    assert asyncio.run(long_text.aside(long_text.LONG, threading.get_ident)) != threading.get_ident()
    child = os.fork()
    if not child:
        signal.alarm(10)
        os._exit(asyncio.run(long_text.aside(long_text.LONG, lambda: 7)))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
